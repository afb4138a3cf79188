"""The remaining machine time of each program (its demand) and the value of meeting its SLO.

A program is all calls of a run, or a single call. Costs come from the measured step model, lengths
from the sketches of its calls, later stages from the predicted future.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serving.policies.urgency import DeadlineClass
from serving.requests import (
    BEST_EFFORT,
    LATENCY,
    MAX_VALUE,
    Flags,
    Floats,
    Ints,
    Requests,
    RequestState,
)
from serving.slo import FutureWork
from serving.view import StepModel, StepView

MIN_S = 1e-6
"""Smallest demand of a program and smallest step, in seconds, for step models not measured yet."""

MEDIAN = 0.5
"""The quantile of output lengths that demand is computed with."""

IN_TIME_SHARE = 0.9
"""A stream meets its SLO as a whole if this share of its tokens is in time."""

MAX_REST = 16.0
"""Most work after a stage, in multiples of it, that its share of the time stands for. A call that
begins late in its stage has little of the stage's time left, and not more work after it."""

_CALLS, _PREFILL, _DECODE, _CRITICAL, _TOOLS, _SERIAL = map(
    FutureWork._fields.index,
    ("calls", "prefill_tokens", "decode_tokens", "critical_s", "tool_s", "serial_tokens"),
)


class Calls(NamedTuple):
    """The remaining work of each request, (n,) each.

    Attributes:
        uncomputed: tokens to prefill, with those of an evicted KV cache, without those expected in
            the prefix cache.
        prompt_s: seconds that they add to steps.
        tokens: predicted output tokens to decode.
        context: mean number of tokens in its context while it decodes.
    """

    uncomputed: Ints
    prompt_s: Floats
    tokens: Floats
    context: Floats


class ProgramDemand(NamedTuple):
    """The remaining work of m programs; attributes are (m,) unless noted.

    Attributes:
        row_of: (n,) the row here of each request's program.
        first: the index of one of its requests.
        is_stream: whether it is a latency stream.
        ends_s: its deadline; infinity for a stream, which counts token by token.
        prompts_s: seconds that its prefills still add to steps.
        first_prompts_s: the part of the present stage.
        decode_tokens: tokens to decode.
        context_tokens: sum of the contexts of these decodes.
        longest_tokens: remaining output of the longest call of its present stage.
        serial_tokens: decode steps on its critical path.
        fixed_s: seconds of its critical path without decodes: prefill and tools.
        tokens: tokens that count as goodput if it meets its SLO.
        can_meet_slo: whether it can still meet its SLO as a whole. A stream that was late and has
            caught up counts as able to, because its late tokens are not recorded.
        counts: its weight among arrivals (StepView.arrival_counts); 1 for a present program.
    """

    row_of: Ints
    first: Ints
    is_stream: Flags
    ends_s: Floats
    prompts_s: Floats
    first_prompts_s: Floats
    decode_tokens: Floats
    context_tokens: Floats
    longest_tokens: Floats
    serial_tokens: Floats
    fixed_s: Floats
    tokens: Floats
    can_meet_slo: Flags
    counts: Floats

    def demand_s(self, model: StepModel) -> Floats:
        """Seconds that each program still adds to steps, times its weight: (m,)."""
        decode_s = self.decode_tokens * (model.token_s + model.sequence_s)
        context_s = self.context_tokens * model.context_s
        each_s = np.maximum(self.prompts_s + decode_s + context_s, MIN_S)
        return each_s * self.counts

    def isolated_latency_s(self, step_s: float | Floats) -> Floats:
        """Seconds until each program ends if it never waits: (m,).

        Args:
            step_s: duration of a step, one for all programs or one each, (m,).
        """
        return self.fixed_s + self.serial_tokens * step_s

    def value(self, requests: Requests, mean_tokens: float, token_share: float) -> Floats:
        """The value of meeting each program's SLO: (m,); 0 for best effort.

        weight * counts * (token_share * tokens / mean_tokens + (1 - token_share) * can_meet_slo)
        """
        value = token_share * self.tokens / mean_tokens + (1 - token_share) * self.can_meet_slo
        value *= self.counts
        has_slo = requests.kind[self.first] != BEST_EFFORT
        return np.where(has_slo, value * requests.weight[self.first], 0.0)


def calls_of(requests: Requests, model: StepModel) -> Calls:
    """The remaining work of each request, with the median of its predicted length."""
    tokens = requests.remaining_tokens(MEDIAN)
    behind = requests.prompt_tokens + requests.output_tokens
    waits = requests.state == RequestState.WAITING
    cached = np.maximum(requests.computed_tokens, requests.cached_tokens * waits)
    uncomputed = np.maximum(behind - cached - 1, 0)
    prompt_s = model.prompt_s(uncomputed, cached)
    return Calls(uncomputed, prompt_s, tokens, behind + tokens / 2)


def with_shares(requests: Requests) -> Floats:
    """The future of each request's program, (n, 6), with those that are unknown made from shares.

    A stage that gets the share s of the time left to its program is taken as the share s of the
    work left: the rest is like the stage, (1 - s) / s times.
    """
    allowed_s = np.maximum(requests.deadline_s - requests.arrival_s, MIN_S)
    with np.errstate(invalid="ignore"):  # infinity / infinity without a deadline
        rest = (requests.final_s - requests.arrival_s) / allowed_s - 1.0
    rest = np.minimum(rest, MAX_REST)
    is_unknown = np.isnan(requests.future[:, _CALLS]) & (rest > 0.0)
    if not is_unknown.any():
        return requests.future
    tokens = requests.output_tokens + requests.remaining_tokens(MEDIAN)
    calls = rest * requests.stage_calls
    made = np.zeros_like(requests.future)
    made[:, _CALLS] = calls
    made[:, _PREFILL] = calls * requests.prompt_tokens
    made[:, _DECODE] = calls * tokens
    made[:, _SERIAL] = rest * tokens
    return np.where(is_unknown[:, np.newaxis], made, requests.future)


def seconds_added(view: StepView, calls: Calls, indices: Ints, steps: float) -> Floats:
    """Seconds that each of these requests adds to this number of steps from now on: (k,)."""
    model, requests = view.model, view.requests
    context = requests.prompt_tokens[indices] + requests.output_tokens[indices]
    token_s = model.token_s + model.sequence_s + model.context_s * context
    seconds: Floats = calls.prompt_s[indices] + token_s * np.minimum(calls.tokens[indices], steps)
    return seconds


def present_programs(view: StepView, calls: Calls) -> ProgramDemand:
    """The programs with calls in the view, with their predicted futures."""
    requests, model = view.requests, view.model
    first, row_of = _grouped(requests.program)
    num_programs = len(first)
    future = np.fmax(requests.future.take(first, axis=0), 0.0)  # fmax turns NaN into 0
    parallel_calls = requests.stage_calls[first]
    later_s = _later_prompts_s(future, requests.prefix_hit_rate[first], model)
    # Calls of the stage that have not arrived are assumed to be like those that have.
    missing = requests.stage_missing[first] / np.bincount(row_of, minlength=num_programs)
    new_tokens = np.maximum(requests.prompt_tokens - requests.cached_tokens - 1, 0)
    whole_prompt_s = model.prompt_s(new_tokens, requests.cached_tokens)
    missing_s = missing * np.bincount(row_of, whole_prompt_s, num_programs)
    first_prompts_s = np.bincount(row_of, calls.prompt_s, num_programs) + missing_s
    decode_tokens = (1.0 + missing) * np.bincount(row_of, calls.tokens, num_programs)
    call_contexts = calls.tokens * calls.context
    context_tokens = (1.0 + missing) * np.bincount(row_of, call_contexts, num_programs)
    call_tokens = requests.prompt_tokens + calls.tokens
    missing_tokens = missing * np.bincount(row_of, call_tokens, num_programs)
    # Tokens count once, even if they were found in the prefix cache or computed twice.
    present = requests.prompt_tokens + requests.output_tokens + calls.tokens
    whole = requests.ended_tokens[first] + np.bincount(row_of, present, num_programs)
    whole += missing_tokens
    whole += future[:, _PREFILL] + future[:, _DECODE]
    is_stream = requests.kind[first] == LATENCY
    can_meet_slo = np.ones(num_programs, dtype=bool)
    can_meet_slo[is_stream] = ~_has_missed_slo(view, calls, first[is_stream])
    longest_tokens = largest_of(row_of, num_programs, calls.tokens)
    prompt_s = largest_of(row_of, num_programs, calls.prompt_s)
    return ProgramDemand(
        row_of=row_of,
        first=first,
        is_stream=is_stream,
        ends_s=np.where(is_stream, np.inf, requests.final_s[first]),
        prompts_s=first_prompts_s + later_s,
        first_prompts_s=first_prompts_s,
        decode_tokens=decode_tokens + future[:, _DECODE],
        context_tokens=context_tokens + _later_context_tokens(future),
        longest_tokens=longest_tokens,
        serial_tokens=longest_tokens + _later_serial_tokens(future, parallel_calls, model),
        fixed_s=prompt_s + later_s / parallel_calls + future[:, _TOOLS],
        tokens=np.where(is_stream, calls.tokens[first], whole),
        can_meet_slo=can_meet_slo,
        counts=np.ones(num_programs),
    )


def arrived_programs(view: StepView) -> ProgramDemand:
    """The programs that arrived recently, in their state at arrival: each has one call."""
    requests = view.arrivals
    calls = calls_of(requests, view.model)
    future = np.fmax(requests.future, 0.0)
    parallel_calls = requests.stage_calls
    rows = np.arange(len(requests))
    first_prompts_s = calls.prompt_s * parallel_calls
    later_s = _later_prompts_s(future, requests.prefix_hit_rate, view.model)
    prefill_tokens = requests.prompt_tokens * parallel_calls + future[:, _PREFILL]
    decode_tokens = calls.tokens * parallel_calls + future[:, _DECODE]
    call_contexts = calls.tokens * calls.context * parallel_calls
    is_stream = requests.kind == LATENCY
    return ProgramDemand(
        row_of=rows,
        first=rows,
        is_stream=is_stream,
        ends_s=np.where(is_stream, np.inf, requests.final_s),
        prompts_s=first_prompts_s + later_s,
        first_prompts_s=first_prompts_s,
        decode_tokens=decode_tokens,
        context_tokens=call_contexts + _later_context_tokens(future),
        longest_tokens=calls.tokens,
        serial_tokens=calls.tokens + _later_serial_tokens(future, parallel_calls, view.model),
        fixed_s=(first_prompts_s + later_s) / parallel_calls + future[:, _TOOLS],
        tokens=np.where(is_stream, calls.tokens, prefill_tokens + decode_tokens),
        can_meet_slo=np.ones(len(rows), dtype=bool),
        counts=np.full(len(rows), view.arrival_counts),
    )


def expired(programs: ProgramDemand, classes: Ints) -> Flags:
    """Whether each program has a call that can no longer earn goodput: (m,).

    Args:
        classes: the DeadlineClass of each request, (n,).
    """
    late = np.zeros(len(programs.first), dtype=bool)
    late[programs.row_of[classes > DeadlineClass.FEASIBLE]] = True
    return late


def largest_of(row_of: Ints, num_programs: int, values: Floats | Ints) -> Floats:
    """The largest value among each program's calls, at least 0."""
    largest = np.zeros(num_programs)
    np.maximum.at(largest, row_of, values.astype(np.float64))  # many times slower on integers
    return largest


def _grouped(numbers: Ints) -> tuple[Ints, Ints]:
    """Group rows by their number; numbers are small and not negative.

    Returns:
        the first index of each number that occurs, in ascending order of the numbers, (m,); and
        the group of each row, (n,).
    """
    first = np.full(numbers.max(initial=-1) + 1, -1)
    first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)  # the last assignment wins
    present = np.flatnonzero(first >= 0)
    group = np.empty_like(first)
    group[present] = np.arange(len(present))
    return first[present], group[numbers]


def _later_prompts_s(future: Floats, prefix_hit_rate: Floats, model: StepModel) -> Floats:
    """Seconds that the prefills of later stages add to steps, assuming prompts of equal length."""
    calls = np.maximum(future[:, _CALLS], 1.0)
    prompt = future[:, _PREFILL] / calls
    return calls * model.prompt_s((1.0 - prefix_hit_rate) * prompt, prefix_hit_rate * prompt)


def _later_serial_tokens(future: Floats, parallel_calls: Ints, model: StepModel) -> Floats:
    """Decode steps of later stages on the critical path: the prediction, if there is one.

    Without one: decode tokens / parallel calls of the present stage, limited to the shortest steps
    that fit into the predicted critical path.
    """
    predicted = future[:, _SERIAL]
    path_s = np.maximum(future[:, _CRITICAL] - future[:, _TOOLS], 0.0)
    limit = path_s / max(model.base_s + model.token_s, MIN_S)
    estimated = np.minimum(future[:, _DECODE] / parallel_calls, limit)
    serial: Floats = np.where(predicted < MAX_VALUE, predicted, estimated)
    return serial


def _later_context_tokens(future: Floats) -> Floats:
    """Sum of the contexts of later stages' decodes, assuming calls of equal length."""
    prefill, decode = future[:, _PREFILL], future[:, _DECODE]
    contexts: Floats = decode * (prefill + decode / 2) / np.maximum(future[:, _CALLS], 1.0)
    return contexts


def _has_missed_slo(view: StepView, calls: Calls, streams: Ints) -> Flags:
    """Whether each of these streams has missed its SLO as a whole.

    Either more tokens are overdue than 1 - IN_TIME_SHARE allows, or the first one is.
    """
    requests, generated = view.requests, view.requests.output_tokens[streams]
    arrival_s, ttft_s = requests.arrival_s[streams], requests.ttft_s[streams]
    since_s = view.now_s - arrival_s - ttft_s
    due = np.floor(np.clip(since_s / requests.tbt_s[streams], -1.0, 1e12)) + 1
    overdue = np.maximum(due - generated, 0.0)
    missed: Flags = overdue > (1 - IN_TIME_SHARE) * (generated + calls.tokens[streams])
    missed |= (generated == 0) & (view.now_s > arrival_s + ttft_s)
    return missed

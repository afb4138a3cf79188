"""What each program still needs from the machine, and what it is worth: the measure of calm.

A program is all calls of a run, or a single call. Its cost comes from the measured step model,
its lengths from the sketches that its calls carry, its later stages from the learned future.
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

LEAST_S = 1e-6
"""No program needs less than this, whatever the model says of a machine not yet measured."""

MEDIAN = 0.5
"""Needs are foretold by the length that an answer has as likely as not."""

SHORT, LITTLE = 0.1, 0.6
"""What may still be in time is judged by answers that one in ten falls short of, and by so much of
what else is foretold."""

SHARE_IN_TIME = 0.9
"""A stream keeps its promise as a whole while this share of its tokens is in time."""

_CALLS, _PREFILL, _DECODE, _CRITICAL, _TOOLS, _SERIAL = map(
    FutureWork._fields.index,
    ("calls", "prefill_tokens", "decode_tokens", "critical_s", "tool_s", "serial_tokens"),
)


class Calls(NamedTuple):
    """What each request still has before it, (n,) each."""

    unread: Ints  # tokens to prefill, those of a lost cache too, but for what may be found in it
    prompt_s: Floats  # seconds that these add to steps
    tokens: Floats  # output to come
    context: Floats  # tokens in its cache while it decodes, on average


class ProgramDemand(NamedTuple):
    """One row for each program, m in all.

    Attributes:
        of: (n,) the program of each request.
        first: (m,) the place of one of its requests.
        streams: which are a latency stream.
        ends_s: when each must end; infinity for a stream, which counts token by token.
        prompts_s: seconds that its prompts still add to steps.
        decode: tokens that it still wants, and `contexts`: of its decodes, added up.
        longest: tokens of the longest call of its present stage.
        serial: decodes of it that come one after the other.
        fixed_s: seconds on its critical path that are no decodes: prompts and tools.
        tokens: goodput that it earns if it ends in time.
        kept: whether it can still count as a whole; a stream that was behind and has caught up is
            taken to, as nobody remembers its late tokens.
        counts: of how many programs it tells, as StepView.arrival_counts; 1 if it is here.
    """

    of: Ints
    first: Ints
    streams: Flags
    ends_s: Floats
    prompts_s: Floats
    decode: Floats
    contexts: Floats
    longest: Floats
    serial: Floats
    fixed_s: Floats
    tokens: Floats
    kept: Flags
    counts: Floats

    def need_s(self, model: StepModel) -> Floats:
        """Seconds that as many as each counts add to steps of the machine until their end: (m,)."""
        decode_s = self.decode * (model.token_s + model.sequence_s)
        each_s = np.maximum(self.prompts_s + decode_s + self.contexts * model.context_s, LEAST_S)
        return each_s * self.counts

    def isolated_latency_s(self, step_s: float | Floats) -> Floats:
        """Seconds until each one's end if every step takes this long and nothing waits: (m,).

        Args:
            step_s: one for all, or one each, (m,).
        """
        return self.fixed_s + self.serial * step_s

    def least_latency_s(self, requests: Requests, step_s: float, asked: Flags) -> Floats:
        """The same if things turn out well, never more: answers short, of the learned rest little.

        Args:
            asked: the programs of which this is asked, (m,); so many are returned, in their order.
        """
        places = np.flatnonzero(asked[self.of])
        short = requests.take(places).remaining_tokens(SHORT)
        longest = largest_of(self.of[places], len(self.first), short)[asked]
        later = (self.serial - self.longest)[asked]
        return LITTLE * self.fixed_s[asked] + (longest + LITTLE * later) * step_s

    def value(self, requests: Requests, mean_tokens: float, token_share: float) -> Floats:
        """Tokens, in the unit of the mean program, make this share; the rest is a promise kept.

        Of as many as each counts: (m,).
        """
        value = token_share * self.tokens / mean_tokens + (1 - token_share) * self.kept
        value *= self.counts
        promised = requests.kind[self.first] != BEST_EFFORT
        return np.where(promised, value * requests.weight[self.first], 0.0)


def calls_of(requests: Requests, model: StepModel) -> Calls:
    """What each request still has before it, its length taken at the median."""
    tokens = requests.remaining_tokens(MEDIAN)
    behind = requests.prompt_tokens + requests.output_tokens
    waits = requests.state == RequestState.WAITING
    known = np.maximum(requests.computed_tokens, requests.cached_tokens * waits)
    unread = np.maximum(behind - known - 1, 0)
    prompt_s = model.prompt_s(unread, known)
    return Calls(unread, prompt_s, tokens, behind + tokens / 2)


def present_programs(view: StepView, calls: Calls) -> ProgramDemand:
    """The programs whose calls are in the view, with their learned futures."""
    requests, model = view.requests, view.model
    first, of = _grouped(requests.program)
    count = len(first)
    future = np.fmax(requests.future.take(first, axis=0), 0.0)  # NaN gives way
    at_once = requests.stage_calls[first]
    later_s = _later_prompts_s(future, requests.prefix_hit_rate[first], model)
    # Calls of the stage that are still to arrive are taken to be like those that have.
    missing = requests.stage_missing[first] / np.bincount(of, minlength=count)
    to_read = np.maximum(requests.prompt_tokens - requests.cached_tokens - 1, 0)
    missing_s = missing * np.bincount(of, model.prompt_s(to_read, requests.cached_tokens), count)
    decode = (1.0 + missing) * np.bincount(of, calls.tokens, count)
    contexts = (1.0 + missing) * np.bincount(of, calls.tokens * calls.context, count)
    tokens_of_missing = missing * np.bincount(of, requests.prompt_tokens + calls.tokens, count)
    # Whatever of it was computed, found in a cache or computed twice, it counts once.
    present = requests.prompt_tokens + requests.output_tokens + calls.tokens
    whole = requests.ended_tokens[first] + np.bincount(of, present, count) + tokens_of_missing
    whole += future[:, _PREFILL] + future[:, _DECODE]
    streams = requests.kind[first] == LATENCY
    kept = np.ones(count, dtype=bool)
    kept[streams] = ~_is_broken(view, calls, first[streams])
    longest = largest_of(of, count, calls.tokens)
    return ProgramDemand(
        of=of,
        first=first,
        streams=streams,
        ends_s=np.where(streams, np.inf, requests.final_s[first]),
        prompts_s=np.bincount(of, calls.prompt_s, count) + missing_s + later_s,
        decode=decode + future[:, _DECODE],
        contexts=contexts + _contexts(future),
        longest=longest,
        serial=longest + _later_serial(future, at_once, model),
        fixed_s=largest_of(of, count, calls.prompt_s) + later_s / at_once + future[:, _TOOLS],
        tokens=np.where(streams, calls.tokens[first], whole),
        kept=kept,
        counts=np.ones(count),
    )


def arrived_programs(view: StepView) -> ProgramDemand:
    """The programs that arrived lately, as they were then: each by its first call."""
    requests = view.arrivals
    calls = calls_of(requests, view.model)
    future = np.fmax(requests.future, 0.0)
    at_once = requests.stage_calls
    rows = np.arange(len(requests))
    prompts_s = calls.prompt_s * at_once + _later_prompts_s(
        future, requests.prefix_hit_rate, view.model
    )
    prefill = requests.prompt_tokens * at_once + future[:, _PREFILL]
    decode = calls.tokens * at_once + future[:, _DECODE]
    streams = requests.kind == LATENCY
    return ProgramDemand(
        of=rows,
        first=rows,
        streams=streams,
        ends_s=np.where(streams, np.inf, requests.final_s),
        prompts_s=prompts_s,
        decode=decode,
        contexts=calls.tokens * calls.context * at_once + _contexts(future),
        longest=calls.tokens,
        serial=calls.tokens + _later_serial(future, at_once, view.model),
        fixed_s=prompts_s / at_once + future[:, _TOOLS],
        tokens=np.where(streams, calls.tokens, prefill + decode),
        kept=np.ones(len(rows), dtype=bool),
        counts=np.full(len(rows), view.arrival_counts),
    )


def expired(programs: ProgramDemand, standing: Ints) -> Flags:
    """Which programs have a call that can earn nothing any more: (m,)."""
    late = np.zeros(len(programs.first), dtype=bool)
    late[programs.of[standing > DeadlineClass.FEASIBLE]] = True
    return late


def largest_of(of: Ints, count: int, values: Floats | Ints) -> Floats:
    """The largest value among each program's calls, at least 0."""
    largest = np.zeros(count)
    np.maximum.at(largest, of, values.astype(np.float64))  # many times slower if it must convert
    return largest


def _grouped(numbers: Ints) -> tuple[Ints, Ints]:
    """Where each number is first, by number, and which of these each one is; numbers are small."""
    first = np.full(numbers.max(initial=-1) + 1, -1)
    first[numbers[::-1]] = np.arange(len(numbers) - 1, -1, -1)  # the last written stays
    present = np.flatnonzero(first >= 0)
    which = np.empty_like(first)
    which[present] = np.arange(len(present))
    return first[present], which[numbers]


def _later_prompts_s(future: Floats, prefix_hit_rate: Floats, model: StepModel) -> Floats:
    """Seconds that the prompts of later stages add to steps, taken to be all of one length."""
    calls = np.maximum(future[:, _CALLS], 1.0)
    prompt = future[:, _PREFILL] / calls
    return calls * model.prompt_s((1.0 - prefix_hit_rate) * prompt, prefix_hit_rate * prompt)


def _later_serial(future: Floats, at_once: Ints, model: StepModel) -> Floats:
    """Decodes of later stages that come one after the other, as they were foretold.

    Where they were not: those of so many calls at once as now, or of more where so many steps would
    not fit into the learned critical path.
    """
    told = future[:, _SERIAL]
    path_s = np.maximum(future[:, _CRITICAL] - future[:, _TOOLS], 0.0)
    at_most = path_s / max(model.base_s + model.token_s, LEAST_S)
    untold = np.minimum(future[:, _DECODE] / at_once, at_most)
    serial: Floats = np.where(told < MAX_VALUE, told, untold)
    return serial


def _contexts(future: Floats) -> Floats:
    """Contexts of the decodes of later stages, added up: each call reads its prompt and itself."""
    prefill, decode = future[:, _PREFILL], future[:, _DECODE]
    contexts: Floats = decode * (prefill + decode / 2) / np.maximum(future[:, _CALLS], 1.0)
    return contexts


def _is_broken(view: StepView, calls: Calls, streams: Ints) -> Flags:
    """Whether more tokens of each of these streams were due and have not come than may be late."""
    requests, came = view.requests, view.requests.output_tokens[streams]
    arrival_s, ttft_s = requests.arrival_s[streams], requests.ttft_s[streams]
    since_s = view.now_s - arrival_s - ttft_s
    due = np.floor(np.clip(since_s / requests.tbt_s[streams], -1.0, 1e12)) + 1
    late = np.maximum(due - came, 0.0)
    broken: Flags = late > (1 - SHARE_IN_TIME) * (came + calls.tokens[streams])
    broken |= (came == 0) & (view.now_s > arrival_s + ttft_s)
    return broken

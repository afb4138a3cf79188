"""Scales a workload of a large machine to a small engine, so that it stays as hard to serve."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.workloads.load_generator import GeneratedLoad
from serving.step_cost import MACHINES, Composition, Machine, StepCost
from serving.workload_errors import InvalidWorkload

REFERENCE = MACHINES["a100-llama3-8b"]
"""The machine that the workloads' SLOs are meant for."""

REFERENCE_SLOTS = 256
"""Slots of the reference machine."""

KEPT_EMPTY_TOKENS = 64
"""KV cache that vLLM keeps empty: one block, of at most this size."""

BUSY_CONTEXT_TOKENS = 1000
BUSY_PROMPT_TOKENS = 2
"""A busy step: every slot decodes with this context, and this many prompt tokens are prefilled per
decode, as the workload "mixed" has prompt tokens per output token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """Capacity of the real engine and of its simulated counterpart; lengths of its workload.

    Attributes:
        slots: requests that may hold a slot at once.
        step_tokens: most tokens that one step may compute.
        kv_tokens: size of the KV cache. The default gives each slot as much, relative to
            `length_scale`, as the reference machine has for each of 256 slots.
        length_scale: factor on the length of every prompt and answer.
        most_call_tokens: limit on prompt and answer together; longer calls are cut, the prompt
            first. The engine's context is twice as long: otherwise a long prompt would lower the
            call's max_tokens, and reveal the answer's length to policies.
    Raises:
        InvalidWorkload: a value is out of range.
    """

    slots: int = 256
    step_tokens: int = 1024
    kv_tokens: int = 233_472
    length_scale: float = 0.5
    most_call_tokens: int = 4096

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise InvalidWorkload("slots", self.slots, "must be at least 1")
        if self.step_tokens < self.slots:
            reason = f"must be at least slots ({self.slots})"
            raise InvalidWorkload("step_tokens", self.step_tokens, reason)
        if not 0 < self.length_scale <= 1:
            reason = "must be above 0 and at most 1"
            raise InvalidWorkload("length_scale", self.length_scale, reason)
        if not 2 <= self.most_call_tokens <= self.kv_tokens // 2:
            reason = f"must be between 2 and half of kv_tokens ({self.kv_tokens})"
            raise InvalidWorkload("most_call_tokens", self.most_call_tokens, reason)

    @property
    def context_tokens(self) -> int:
        """The engine's longest context: the longest prompt and max_tokens.

        At most the KV cache without the block that vLLM keeps empty.
        """
        return min(2 * self.most_call_tokens, self.kv_tokens - KEPT_EMPTY_TOKENS)


class Scale(NamedTuple):
    """A machine and its workload relative to the reference machine.

    Attributes:
        tokens: length of a call / length of the reference's call.
        step: seconds of a busy step / seconds of the reference's busy step.
    """

    tokens: float
    step: float

    @property
    def call_time(self) -> float:
        """Seconds of a call / seconds of the reference's call."""
        return self.tokens * self.step


def scale_of(machine: Machine, settings: LiveSettings) -> Scale:
    """The scale with which a workload is as hard for this machine as for the reference."""
    own_s = busy_step_s(machine.step_cost, settings.slots, settings.length_scale)
    reference_s = busy_step_s(REFERENCE.step_cost, REFERENCE_SLOTS, 1.0)
    return Scale(settings.length_scale, own_s / reference_s)


def busy_step_s(cost: StepCost, num_decodes: int, length_scale: float) -> float:
    """Seconds of a busy step with this many decodes, with contexts scaled by length_scale."""
    chunk = num_decodes * BUSY_PROMPT_TOKENS
    contexts = round(num_decodes * BUSY_CONTEXT_TOKENS * length_scale)
    return cost.seconds(Composition(num_decodes + chunk, num_decodes, contexts, ((chunk, 0),)))


def scaled(
    programs: Iterable[Program], scale: Scale, *, most_call_tokens: int
) -> tuple[Program, ...]:
    """Programs with shorter calls, and with times scaled to the duration of these calls.

    TBT scales with the duration of a step. Arrivals, TTFT, deadlines and tools scale with the
    duration of a call, so that they keep their proportion to service and queueing times.

    Raises:
        InvalidWorkload: answers have two parts; a real model does not end the first as recorded.
    """
    programs = tuple(programs)
    for program in programs:
        if program.then_tbt_s is not None:
            reason = "answers in two parts run only in the simulator"
            raise InvalidWorkload("program", program.id, reason)
    return tuple(
        replace(
            program,
            arrival_s=program.arrival_s * scale.call_time,
            stages=tuple(
                Stage(
                    tuple(_shortened(call, scale.tokens, most_call_tokens) for call in stage.calls),
                    stage.tool_s * scale.call_time,
                )
                for stage in program.stages
            ),
            ttft_s=program.ttft_s * scale.call_time,
            tbt_s=program.tbt_s * scale.step,
            deadline_s=None if program.deadline_s is None else program.deadline_s * scale.call_time,
        )
        for program in programs
    )


def scaled_load(load: GeneratedLoad, scale: Scale, *, most_call_tokens: int) -> GeneratedLoad:
    """A load scaled like its programs."""
    from_s, to_s = load.window_s
    return load._replace(
        programs=scaled(load.programs, scale, most_call_tokens=most_call_tokens),
        window_s=(from_s * scale.call_time, to_s * scale.call_time),
        decided_s=load.decided_s * scale.call_time,
    )


def scaled_predictions(
    predictions: Predictions, scale: Scale, *, most_call_tokens: int
) -> Predictions:
    """Predictions at this machine's speed and lengths, with the same errors.

    An answer within max_tokens is within the scaled max_tokens after `scaled`.
    """
    return replace(
        predictions,
        token_s=predictions.token_s * scale.step,
        prefill_token_s=predictions.prefill_token_s * scale.step,
        max_tokens=min(max(round(predictions.max_tokens * scale.tokens), 1), most_call_tokens - 1),
    )


def _shortened(call: Call, factor: float, most_tokens: int) -> Call:
    output = min(max(round(call.output_tokens * factor), 1), most_tokens - 1)
    prompt = min(max(round(call.prompt_tokens * factor), 1), most_tokens - output)
    shared = min(round(call.shared_prefix_tokens * factor), prompt)
    return call._replace(prompt_tokens=prompt, output_tokens=output, shared_prefix_tokens=shared)

"""A workload of a large machine, brought down to the engine at hand with its hardness kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import NamedTuple

from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.programs.promises import Predictions
from serving.sim.workloads.load_generator import GeneratedLoad
from serving.step_cost import MACHINES, Composition, Machine, StepCost
from serving.workload_errors import InvalidWorkload

REFERENCE = MACHINES["a100-llama3-8b"]
"""The machine that the workloads' promises are made for."""

REFERENCE_SLOTS = 256
"""Its slots."""

KEPT_EMPTY_TOKENS = 64
"""Of an engine's KV cache, in whole blocks of any usual size."""

BUSY_CONTEXT_TOKENS = 1000
BUSY_PROMPT_TOKENS = 2
"""A busy step: every slot decodes with so long a context, and as many prompt tokens are read per
decode as the workload "mixed" has prompt tokens per output token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveSettings:
    """Room of the real engine, and of the simulated one beside it; lengths of its workload.

    Attributes:
        slots: requests that may hold a slot at once.
        step_tokens: most tokens that one step may compute.
        kv_tokens: room of the KV cache; the default leaves a slot as much, after `length_scale`,
            as the reference machine has for each of 256.
        length_scale: every prompt's and answer's length is multiplied with this.
        most_call_tokens: a prompt and its answer together; longer ones are cut, the prompt first.
            The engine's context is twice as long: what a prompt leaves of it must never be less
            than the caller's limit, as it would be all that the answer needs.
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
            told = f"must be at least slots ({self.slots})"
            raise InvalidWorkload("step_tokens", self.step_tokens, told)
        if not 0 < self.length_scale <= 1:
            told = "must be above 0 and at most 1"
            raise InvalidWorkload("length_scale", self.length_scale, told)
        if not 2 <= self.most_call_tokens <= self.kv_tokens // 2:
            told = f"must lie within 2 and half of kv_tokens ({self.kv_tokens})"
            raise InvalidWorkload("most_call_tokens", self.most_call_tokens, told)

    @property
    def context_tokens(self) -> int:
        """The engine's longest context: any prompt, and the longest answer its caller may want.

        At most what the KV cache has room for, of which vLLM keeps a block empty.
        """
        return min(2 * self.most_call_tokens, self.kv_tokens - KEPT_EMPTY_TOKENS)


class Scale(NamedTuple):
    """How a machine and its workload compare with the reference.

    Attributes:
        tokens: of a call, over those of the reference's call.
        step: seconds of a busy step, over those of the reference.
    """

    tokens: float
    step: float

    @property
    def whole(self) -> float:
        """Seconds of a whole call, over those of the reference: fewer tokens in other steps."""
        return self.tokens * self.step


def scale_of(machine: Machine, settings: LiveSettings) -> Scale:
    """What a workload must be scaled by, to be as hard for this machine as for the reference."""
    own_s = busy_step_s(machine.step_cost, settings.slots, settings.length_scale)
    reference_s = busy_step_s(REFERENCE.step_cost, REFERENCE_SLOTS, 1.0)
    return Scale(settings.length_scale, own_s / reference_s)


def busy_step_s(cost: StepCost, num_decodes: int, length_scale: float) -> float:
    """Seconds of a busy step of so many requests, with calls of this share of their length."""
    chunk = num_decodes * BUSY_PROMPT_TOKENS
    contexts = round(num_decodes * BUSY_CONTEXT_TOKENS * length_scale)
    return cost.seconds(Composition(num_decodes + chunk, num_decodes, contexts, ((chunk, 0),)))


def scaled(
    programs: Iterable[Program], scale: Scale, *, most_call_tokens: int
) -> tuple[Program, ...]:
    """Programs with shorter calls, in a time that runs faster by as much as they take less of it.

    TBT is a matter of single steps and scales with them; arrivals, TTFT, deadlines and tools scale
    with whole calls, so that they keep their proportion to the time that work and waiting take.
    """
    return tuple(
        replace(
            program,
            arrival_s=program.arrival_s * scale.whole,
            stages=tuple(
                Stage(
                    tuple(_shortened(call, scale.tokens, most_call_tokens) for call in stage.calls),
                    stage.tool_s * scale.whole,
                )
                for stage in program.stages
            ),
            ttft_s=program.ttft_s * scale.whole,
            tbt_s=program.tbt_s * scale.step,
            deadline_s=None if program.deadline_s is None else program.deadline_s * scale.whole,
        )
        for program in programs
    )


def scaled_load(offered: GeneratedLoad, scale: Scale, *, most_call_tokens: int) -> GeneratedLoad:
    """What is offered, in the same faster time."""
    from_s, to_s = offered.window_s
    return offered._replace(
        programs=scaled(offered.programs, scale, most_call_tokens=most_call_tokens),
        window_s=(from_s * scale.whole, to_s * scale.whole),
        decided_s=offered.decided_s * scale.whole,
    )


def scaled_predictions(
    predictions: Predictions, scale: Scale, *, most_call_tokens: int
) -> Predictions:
    """What is foretold on this machine: the same errors, at its own speed and lengths.

    An answer that kept to its caller's limit keeps to the scaled one after `scaled`, too.
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

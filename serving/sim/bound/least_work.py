"""The least that any schedule spends on a program: tokens, seconds of attention, time in sequence.

A step's cost has a part that its sequences share and a part that each adds. Only the latter is
counted here, so that adding it up over programs never counts more than a schedule spends.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from serving.sim.programs.programs import Call, Program, Stage
from serving.step_cost import StepCost

Floats = NDArray[np.float64]


class CallWork(NamedTuple):
    """The least work of one call.

    A prompt's last step brings the first output token, so that n tokens of output are n - 1
    decodes.

    Attributes:
        prefill_tokens: read of the prompt.
        prefill_s: seconds of the prompt's attention.
        prefill_steps: steps in which the prompt is read.
        prefill_alone_s: seconds that reading it takes on an otherwise idle machine.
        decode_s: shape (output_tokens - 1,): seconds of attention of each decode.
        decode_alone_s: the same shape: seconds of a step that computes this decode alone.
        decode_contexts: the same shape: tokens of KV cache that each decode attends to, of those
            that no other call may share.
    """

    prefill_tokens: int
    prefill_s: float
    prefill_steps: int
    prefill_alone_s: float
    decode_s: Floats
    decode_alone_s: Floats
    decode_contexts: Floats

    @property
    def steps(self) -> int:
        """Steps from its first to its last: no step brings a sequence two tokens."""
        return self.prefill_steps + len(self.decode_s)

    @property
    def isolated_latency_s(self) -> float:
        """Seconds from its submission to its last token on an otherwise idle machine."""
        return self.prefill_alone_s + float(self.decode_alone_s.sum())


class StageWork(NamedTuple):
    """The least work of a stage, and when it could happen at all.

    Attributes:
        release_s, due_s: absolute; all its work lies between them if the program ends in time.
    """

    release_s: float
    due_s: float
    calls: tuple[CallWork, ...]

    @property
    def steps(self) -> int:
        """Steps of its longest call."""
        return max(call.steps for call in self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """What work costs at least, however a batch is composed.

    Where an engine drops a sequence's KV cache and reads the context again, the next token comes
    out of a chunk of at least two tokens instead of a decode: the cheaper of both is counted.

    Attributes:
        step_tokens: most tokens of one step.
        slots: most sequences of one step; they share the base cost of decoding.
        prefix_caching: whether calls of one program and one prefix group may share the KV cache of
            their common prefix.
    """

    cost: StepCost
    step_tokens: int
    slots: int
    prefix_caching: bool = False

    @property
    def lines(self) -> tuple[tuple[float, float], ...]:
        """(seconds of a step, seconds of a token) of the two lines; a step is above both."""
        cost = self.cost
        return (
            (cost.fixed_s + cost.small_base_s, cost.small_token_s),
            (cost.fixed_s + cost.large_base_s, cost.large_token_s),
        )

    def call(self, call: Call, *, cached_tokens: int = 0, unread_tokens: int = 0) -> CallWork:
        """The least work of a call.

        Args:
            cached_tokens: of its prompt, those that another call of its program may have read.
            unread_tokens: of those, the ones counted as this call's work nonetheless.
        """
        cost = self.cost
        read = call.prompt_tokens - cached_tokens
        num_steps = -(-read // self.step_tokens)
        begin = cached_tokens - unread_tokens
        pairs_s = cost.chunk_pair_s * 0.5
        least_s = num_steps * cost.chunk_base_s + pairs_s * (
            call.prompt_tokens**2 - cached_tokens**2
        )
        isolated_latency_s = max(
            (num_steps * base + token * read for base, token in self.lines if base >= 0),
            default=0.0,
        )
        contexts = call.prompt_tokens + np.arange(call.output_tokens - 1, dtype=np.float64)
        attention = cost.decode_sequence_s + cost.decode_context_s * contexts
        reread = cost.chunk_base_s + cost.chunk_pair_s * 2.0 * contexts
        single = max(base + token for base, token in self.lines)
        shared = min(call.shared_prefix_tokens, call.prompt_tokens) if self.prefix_caching else 0
        return CallWork(
            prefill_tokens=call.prompt_tokens - begin,
            prefill_s=least_s + pairs_s * (cached_tokens**2 - begin**2),
            prefill_steps=num_steps,
            prefill_alone_s=isolated_latency_s + least_s,
            decode_s=np.minimum(cost.decode_base_s / self.slots + attention, reread),
            decode_alone_s=single + np.minimum(cost.decode_base_s + attention, reread),
            decode_contexts=contexts - shared,
        )

    def stages(self, program: Program, *, due_s: float) -> tuple[StageWork, ...] | None:
        """The stages' least work if the last ends by due_s (absolute); None: it cannot.

        A stage begins when the former has ended at best and its tools have run, and ends early
        enough for the later ones at their best.
        """
        work = self._calls(program.stages)
        isolated_latency_s = [max(call.isolated_latency_s for call in calls) for calls in work]
        tools_s = [stage.tool_s for stage in program.stages]
        ends_s = np.cumsum(np.add(isolated_latency_s, tools_s)) + program.arrival_s
        spare_s = due_s - float(ends_s[-1])
        if spare_s < 0:
            return None
        return tuple(
            StageWork(float(end_s) - least_s, float(end_s) + spare_s, calls)
            for end_s, least_s, calls in zip(ends_s, isolated_latency_s, work, strict=True)
        )

    def _calls(self, stages: tuple[Stage, ...]) -> list[tuple[CallWork, ...]]:
        """Every call's work; a group's common prefix is read once where it may be shared."""
        if not self.prefix_caching:
            return [tuple(map(self.call, stage.calls)) for stage in stages]
        seen: dict[int, int] = {}
        work = []
        for stage in stages:
            shares: dict[int, list[int]] = {}
            for call in stage.calls:
                shares.setdefault(call.prefix_group, []).append(call.shared_prefix_tokens)
            most = {group: sorted([0, *each])[-2:] for group, each in shares.items()}
            readers = {
                call.prefix_group: place
                for place, call in enumerate(stage.calls)
                if call.shared_prefix_tokens == most[call.prefix_group][1]
            }
            calls = []
            for place, call in enumerate(stage.calls):
                before, (second, first) = seen.get(call.prefix_group, 0), most[call.prefix_group]
                is_reader = readers[call.prefix_group] == place
                others = second if is_reader else first
                cached = min(call.shared_prefix_tokens, call.prompt_tokens - 1, max(before, others))
                unread = max(cached - before, 0) if is_reader else 0
                calls.append(self.call(call, cached_tokens=cached, unread_tokens=unread))
            for group, (_, first) in most.items():
                seen[group] = max(seen.get(group, 0), first)
            work.append(tuple(calls))
        return work

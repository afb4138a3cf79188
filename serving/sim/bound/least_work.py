"""The least work that any schedule does for a program: tokens, attention seconds, sequential time.

A step's cost has a part that its sequences share and a part that each sequence adds. Only the
latter is counted here, so that the sum over programs never exceeds what a schedule spends.
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

    The last step of a prefill yields the first output token: n output tokens take n - 1 decodes.

    Attributes:
        prefill_tokens: prompt tokens to compute.
        prefill_s: seconds of the prompt's attention.
        prefill_steps: steps that the prefill takes.
        isolated_prefill_s: seconds that the prefill takes on an idle machine.
        decode_s: shape (output_tokens - 1,): seconds of attention of each decode.
        isolated_decode_s: the same shape: seconds of a step that computes this decode alone.
        decode_contexts: the same shape: tokens of KV cache that each decode attends to, without
            those that other calls may share.
    """

    prefill_tokens: int
    prefill_s: float
    prefill_steps: int
    isolated_prefill_s: float
    decode_s: Floats
    isolated_decode_s: Floats
    decode_contexts: Floats

    @property
    def steps(self) -> int:
        """Sequential steps: a step yields at most one token of a sequence."""
        return self.prefill_steps + len(self.decode_s)

    @property
    def isolated_latency_s(self) -> float:
        """Seconds from submission to the last token on an idle machine."""
        return self.isolated_prefill_s + float(self.isolated_decode_s.sum())


class StageWork(NamedTuple):
    """The least work of a stage.

    Attributes:
        release_s, due_s: absolute seconds; a program that ends in time does all of the stage's
            work between them.
    """

    release_s: float
    due_s: float
    calls: tuple[CallWork, ...]

    @property
    def steps(self) -> int:
        """Sequential steps of the longest call."""
        return max(call.steps for call in self.calls)


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastWork:
    """The least work of calls and programs on one machine, for any composition of batches.

    An engine may evict a sequence's KV cache and recompute its context. Then the next token is the
    result of a prefill chunk of at least two tokens instead of a decode; the cheaper one counts.

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
        """(seconds per step, seconds per token) of two lines that both bound a step's cost."""
        cost = self.cost
        return (
            (cost.fixed_s + cost.small_base_s, cost.small_token_s),
            (cost.fixed_s + cost.large_base_s, cost.large_token_s),
        )

    def call(self, call: Call, *, cached_tokens: int = 0, unread_tokens: int = 0) -> CallWork:
        """The least work of a call.

        Args:
            cached_tokens: prompt tokens that another call of its program may have computed.
            unread_tokens: those of them that count as work of this call nonetheless.
        """
        cost = self.cost
        read = call.prompt_tokens - cached_tokens
        num_steps = -(-read // self.step_tokens)
        begin = cached_tokens - unread_tokens
        pairs_s = cost.chunk_pair_s * 0.5
        attention_s = num_steps * cost.chunk_base_s + pairs_s * (
            call.prompt_tokens**2 - cached_tokens**2
        )
        linear_s = max(
            (num_steps * base + token * read for base, token in self.lines if base >= 0),
            default=0.0,
        )
        contexts = call.prompt_tokens + np.arange(call.output_tokens - 1, dtype=np.float64)
        decode_s = cost.decode_sequence_s + cost.decode_context_s * contexts
        recompute_s = cost.chunk_base_s + cost.chunk_pair_s * 2.0 * contexts
        one_token_s = max(base + token for base, token in self.lines)
        shared = min(call.shared_prefix_tokens, call.prompt_tokens) if self.prefix_caching else 0
        return CallWork(
            prefill_tokens=call.prompt_tokens - begin,
            prefill_s=attention_s + pairs_s * (cached_tokens**2 - begin**2),
            prefill_steps=num_steps,
            isolated_prefill_s=linear_s + attention_s,
            decode_s=np.minimum(cost.decode_base_s / self.slots + decode_s, recompute_s),
            isolated_decode_s=one_token_s + np.minimum(cost.decode_base_s + decode_s, recompute_s),
            decode_contexts=contexts - shared,
        )

    def stages(self, program: Program, *, due_s: float) -> tuple[StageWork, ...] | None:
        """The least work of each stage, if the last one ends by due_s (absolute seconds).

        A stage is released when the stage before it has ended on an idle machine and its tools
        have run. It is due early enough for the later stages to end in time on an idle machine.

        Returns:
            None if the program cannot end by due_s even on an idle machine.
        """
        work = self._calls(program.stages)
        latencies_s = [max(call.isolated_latency_s for call in calls) for calls in work]
        tools_s = [stage.tool_s for stage in program.stages]
        ends_s = np.cumsum(np.add(latencies_s, tools_s)) + program.arrival_s
        slack_s = due_s - float(ends_s[-1])
        if slack_s < 0:
            return None
        return tuple(
            StageWork(float(end_s) - latency_s, float(end_s) + slack_s, calls)
            for end_s, latency_s, calls in zip(ends_s, latencies_s, work, strict=True)
        )

    def _calls(self, stages: tuple[Stage, ...]) -> list[tuple[CallWork, ...]]:
        """The work of every call, stage by stage; a group's common prefix is computed once.

        Of a stage's calls in one group the last one with the longest prefix computes it.
        """
        if not self.prefix_caching:
            return [tuple(map(self.call, stage.calls)) for stage in stages]
        cached_before: dict[int, int] = {}  # group -> prefix tokens of earlier stages
        work = []
        for stage in stages:
            prefixes: dict[int, list[int]] = {}
            for call in stage.calls:
                prefixes.setdefault(call.prefix_group, []).append(call.shared_prefix_tokens)
            two_longest = {group: sorted([0, *each])[-2:] for group, each in prefixes.items()}
            readers = {
                call.prefix_group: place
                for place, call in enumerate(stage.calls)
                if call.shared_prefix_tokens == two_longest[call.prefix_group][1]
            }
            calls = []
            for place, call in enumerate(stage.calls):
                before = cached_before.get(call.prefix_group, 0)
                second, longest = two_longest[call.prefix_group]
                is_reader = readers[call.prefix_group] == place
                others = second if is_reader else longest
                cached = min(call.shared_prefix_tokens, call.prompt_tokens - 1, max(before, others))
                unread = max(cached - before, 0) if is_reader else 0
                calls.append(self.call(call, cached_tokens=cached, unread_tokens=unread))
            for group, (_, longest) in two_longest.items():
                cached_before[group] = max(cached_before.get(group, 0), longest)
            work.append(tuple(calls))
        return work

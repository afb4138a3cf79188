"""Programs: stages of calls, run in closed loop. A stage starts when the one before has ended."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

from serving.slo import DEFAULT_TBT_S, DEFAULT_TTFT_S, SloKind
from serving.workload_errors import InvalidProgram


class Call(NamedTuple):
    """One LLM call with its true length, which policies must not see.

    Attributes:
        prompt_tokens, output_tokens: at least 1.
        shared_prefix_tokens: length of the prefix that the prompt shares with other calls. Two
            calls of one program and one group have the same first tokens, as many as the smaller of
            their two counts.
        prefix_group: calls of different groups share no prefix.
        step: the step of its application that makes it, as its client knows it: "reflection".
        then_from: number of the first output token of the answer's second part, which is a stream
            of its own pace, such as the answer after thinking; None: the answer has one part. 0:
            all of it is a stream, though the program is not.
    """

    prompt_tokens: int
    output_tokens: int
    shared_prefix_tokens: int = 0
    prefix_group: int = 0
    step: str = ""
    then_from: int | None = None

    @property
    def whole_tokens(self) -> int:
        """Output tokens before the second part of its answer; all without one."""
        return self.output_tokens if self.then_from is None else self.then_from


class Stage(NamedTuple):
    """Calls that are submitted together, `tool_s` seconds after the previous stage ended."""

    calls: tuple[Call, ...]
    tool_s: float = 0.0


class StageCall(NamedTuple):
    """A call and its place in its program."""

    call_id: str
    stage: int
    call: Call


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A program: its calls, stage by stage, and its SLO.

    Latency and deadline programs have one stage with one call. Compound programs have any stages;
    one with a single call is an agent loop that ended after its first call.

    Attributes:
        id: unique in its workload.
        application: the type of program, such as "deep_research".
        arrival_s: when it is submitted, in seconds of virtual time.
        ttft_s, tbt_s: SLO of the latency kind.
        deadline_s: SLO of the deadline and compound kinds, from arrival to the end of the last
            call; None for the other kinds.
        user: key for fairness.
        weight: goodput weight.
        then_tbt_s: TBT of the second part of its last answer, as in `Slo.then_tbt_s`: of the only
            call of the last stage, the one with `then_from`.
    Raises:
        InvalidProgram: a count or a time is out of range, or the kind and the shape disagree.
    """

    id: str
    application: str
    kind: SloKind
    arrival_s: float
    stages: tuple[Stage, ...]
    ttft_s: float = DEFAULT_TTFT_S
    tbt_s: float = DEFAULT_TBT_S
    deadline_s: float | None = None
    user: str = ""
    weight: float = 1.0
    then_tbt_s: float | None = None

    def __post_init__(self) -> None:
        reason = self._shape_fault() or self._slo_fault() or self._second_part_fault()
        if reason:
            raise InvalidProgram(self.id, reason)

    def _shape_fault(self) -> str | None:
        if not self.id:
            return "it needs an id"
        if not self.stages or not all(stage.calls for stage in self.stages):
            return "it needs at least one stage, and every stage at least one call"
        if self.kind in (SloKind.LATENCY, SloKind.DEADLINE) and self.num_calls > 1:
            return f"kind {self.kind} has one call, not {self.num_calls}; use compound"
        for index, stage in enumerate(self.stages):
            if not (math.isfinite(stage.tool_s) and stage.tool_s >= 0):
                return f"stage {index}: tool_s must be finite and at least 0, not {stage.tool_s}"
            for call in stage.calls:
                if call.prompt_tokens < 1 or call.output_tokens < 1:
                    return f"stage {index}: a call needs at least 1 prompt and 1 output token"
                if not 0 <= call.shared_prefix_tokens <= call.prompt_tokens:
                    return f"stage {index}: shared_prefix_tokens must be from 0 to prompt_tokens"
        return None

    def _slo_fault(self) -> str | None:
        if not (math.isfinite(self.arrival_s) and self.arrival_s >= 0):
            return f"arrival_s must be finite and at least 0, not {self.arrival_s}"
        needs_deadline = self.kind in (SloKind.DEADLINE, SloKind.COMPOUND)
        if needs_deadline != (self.deadline_s is not None):
            return f"kind {self.kind} {'needs a' if needs_deadline else 'has no'} deadline_s"
        for name in ("ttft_s", "tbt_s", "deadline_s", "weight", "then_tbt_s"):
            value = getattr(self, name)
            if value is not None and not (math.isfinite(value) and value > 0):
                return f"{name} must be a finite number above 0, not {value}"
        return None

    def _second_part_fault(self) -> str | None:
        in_parts = [each for each in self.all_calls() if each.call.then_from is not None]
        if self.then_tbt_s is None:
            return "a call with then_from needs then_tbt_s" if in_parts else None
        if self.kind is SloKind.BEST_EFFORT:
            return "kind best_effort has no then_tbt_s"
        if len(self.stages[-1].calls) > 1 or [each.stage for each in in_parts] != [
            len(self.stages) - 1
        ]:
            return "then_tbt_s needs then_from in the only call of the last stage, and nowhere else"
        (last,) = self.stages[-1].calls
        first = 0 if self.kind is SloKind.COMPOUND else 1
        if not first <= last.whole_tokens < last.output_tokens:
            return f"then_from must be from {first} to below {last.output_tokens} output tokens"
        return None

    def without_slo(self) -> Program:
        """The same calls as best effort."""
        *before, last = self.stages
        last = last._replace(calls=tuple(call._replace(then_from=None) for call in last.calls))
        return replace(
            self,
            kind=SloKind.BEST_EFFORT,
            stages=(*before, last),
            deadline_s=None,
            then_tbt_s=None,
        )

    @property
    def num_calls(self) -> int:
        """Number of calls of all stages."""
        return sum(len(stage.calls) for stage in self.stages)

    @property
    def prompt_tokens(self) -> int:
        """Prompt tokens of all calls; a shared prefix counts once for each call."""
        return sum(call.prompt_tokens for stage in self.stages for call in stage.calls)

    @property
    def output_tokens(self) -> int:
        """Output tokens of all calls."""
        return sum(call.output_tokens for stage in self.stages for call in stage.calls)

    @property
    def total_tokens(self) -> int:
        """Prompt and output tokens of all calls."""
        return self.prompt_tokens + self.output_tokens

    @property
    def tool_s(self) -> float:
        """Seconds of all tools."""
        return math.fsum(stage.tool_s for stage in self.stages)

    def stage_calls(self, stage: int) -> Iterator[StageCall]:
        """The calls of one stage; call ids are unique if program ids are."""
        for index, call in enumerate(self.stages[stage].calls):
            yield StageCall(f"{self.id}/{stage}/{index}", stage, call)

    def all_calls(self) -> Iterator[StageCall]:
        """The calls of all stages, first stage first."""
        for stage in range(len(self.stages)):
            yield from self.stage_calls(stage)

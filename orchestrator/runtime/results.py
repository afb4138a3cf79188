"""The result of a run: its value, its duration, its stages."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from orchestrator.display.run_log import RunLog
from orchestrator.durations import shown
from orchestrator.execution.context import CallTrace, LiveRun, none_if_infinite
from store.records import CallKind, CallRecord, Status

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a run; times in seconds since the run's start.

    Attributes:
        stage: its index, from 0.
        calls: the identities of its LLM and tool calls.
        ended_s: of the last of its calls that completed; None if none did.
        sub_deadline_s: None without a deadline.
        source: of the sub-deadline: "learned" or "fallback"; "" without a deadline.
    """

    stage: int
    calls: tuple[str, ...]
    started_s: float
    ended_s: float | None
    sub_deadline_s: float | None
    source: str


@dataclass(frozen=True, slots=True)
class RunUsage:
    """What the LLM calls of a run used that were answered, or that the flow left early.

    The tokens of a call that was left are estimated from the lengths of the prompt and of the text
    that the flow has read. Calls that failed or were cut off are not counted.

    Attributes:
        prompt_tokens: of all prompts, those in `cached_tokens` included.
        cached_tokens: prompt tokens that were found in the prefix cache.
        output_tokens: of all answers.
        calls: number of these calls.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    calls: int = 0

    @property
    def tokens(self) -> int:
        """Prompt and output tokens together, which `budget(tokens=)` limits."""
        return self.prompt_tokens + self.output_tokens


@dataclass(frozen=True, slots=True)
class RunResult(Generic[R]):
    """The result of a completed run.

    Attributes:
        value: the flow's return value.
        deadline_s: the flow's deadline; None: none.
        elapsed_s: seconds from the run's start to its end.
        stages: in order; empty if the run had ended before and only its result was loaded.
        usage: of its LLM calls, those before it was resumed included.
        log: what `timeline(result)` draws; None: only the store knows.
    """

    value: R
    run_id: str
    deadline_s: float | None
    elapsed_s: float
    stages: tuple[StageReport, ...]
    usage: RunUsage = RunUsage()
    log: RunLog | None = field(default=None, repr=False, compare=False)

    @property
    def in_time(self) -> bool:
        """Whether the run ended within its deadline."""
        return self.deadline_s is None or self.elapsed_s <= self.deadline_s

    def _repr_html_(self) -> str:
        """The value and the timeline, for a notebook."""
        from orchestrator.display.run_html import result_html

        of = "" if self.deadline_s is None else f" of {shown(self.deadline_s)}"
        return result_html(
            self.value,
            None if self.log is None else self.log.timeline(),
            summary=f"run {self.run_id} took {shown(self.elapsed_s)}{of}",
        )


def usage_of(of_run: Iterable[CallTrace | CallRecord]) -> RunUsage:
    """The sums over those of a run's calls that are LLM calls and were answered or left."""
    calls = [
        call
        for call in of_run
        if call.kind == CallKind.LLM and (call.prompt_tokens or _is_answered(call))
    ]
    return RunUsage(
        prompt_tokens=sum(call.prompt_tokens or 0 for call in calls),
        cached_tokens=sum(call.cached_tokens or 0 for call in calls),
        output_tokens=sum(call.output_tokens or 0 for call in calls),
        calls=len(calls),
    )


def _is_answered(call: CallTrace | CallRecord) -> bool:
    if isinstance(call, CallTrace):
        return call.ended_s is not None
    return call.status is Status.COMPLETED


def stage_reports(live: LiveRun) -> tuple[StageReport, ...]:
    """The stages of a run, in order, each with its calls."""
    by_stage: dict[int, list[CallTrace]] = defaultdict(list)
    for call in live.calls:
        by_stage[call.stage].append(call)
    reports = []
    for stage, calls in sorted(by_stage.items()):
        ends = [call.ended_s for call in calls if call.ended_s is not None]
        sub_deadline_s = none_if_infinite(live.since_start_s(calls[0].deadline.at_s))
        reports.append(
            StageReport(
                stage=stage,
                calls=tuple(call.identity for call in calls),
                started_s=live.since_start_s(calls[0].began_s),
                ended_s=live.since_start_s(max(ends)) if ends else None,
                sub_deadline_s=sub_deadline_s,
                source="" if sub_deadline_s is None else calls[0].deadline.source,
            )
        )
    return tuple(reports)

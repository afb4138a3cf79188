"""What a run came to: its value, its time, its stages."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Generic, TypeVar

from orchestrator.execution.context import CallTrace, LiveRun, none_if_infinite

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a run. Times in seconds from the run's start; None: no deadline, not ended."""

    stage: int
    calls: tuple[str, ...]
    started_s: float
    ended_s: float | None
    sub_deadline_s: float | None
    source: str


@dataclass(frozen=True, slots=True)
class RunResult(Generic[R]):
    """What a run came to."""

    value: R
    run_id: str
    deadline_s: float | None
    elapsed_s: float
    stages: tuple[StageReport, ...]

    @property
    def in_time(self) -> bool:
        """Whether the run ended by its deadline."""
        return self.deadline_s is None or self.elapsed_s <= self.deadline_s


def stage_reports(live: LiveRun) -> tuple[StageReport, ...]:
    """The stages of a run, first to last, each with the calls made in it."""
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

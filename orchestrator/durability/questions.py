"""The questions of a run to a person: which are open, and which answer may still be replaced."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from orchestrator.errors import NoOpenQuestion
from store.records import RunRecord, Status, StepKind, StepRecord

_OPEN_STATUSES = {
    Status.RUNNING: {Status.RUNNING},
    Status.FAILED: {Status.RUNNING, Status.CANCELLED},
    Status.CANCELLED: {Status.RUNNING, Status.CANCELLED},
    Status.COMPLETED: set[Status](),
    Status.QUEUED: {Status.RUNNING, Status.CANCELLED},
    Status.DEAD: {Status.RUNNING, Status.CANCELLED},
}
"""Status of a run -> statuses of its questions that can still be answered. If a run failed or was
cancelled, its cancelled questions count: an answer is used when the run is resumed."""


def open_questions(run: RunRecord, steps: Sequence[StepRecord]) -> list[StepRecord]:
    """The questions that can be answered, in the order in which they were asked."""
    return [
        step
        for step in steps
        if step.kind is StepKind.INPUT and step.status in _OPEN_STATUSES[run.status]
    ]


def unread_answers(run: RunRecord, steps: Sequence[StepRecord]) -> list[StepRecord]:
    """The answered questions of which the flow has not read the answer, so it can be replaced."""
    return [
        step
        for step in steps
        if step.kind is StepKind.INPUT
        and (step.status, step.outcome_number) == (Status.COMPLETED, None)
        and run.status is not Status.COMPLETED
    ]


def age_s(run: RunRecord, steps: Sequence[StepRecord], now: datetime) -> float:
    """Seconds from the start of a run without a process to now, by the run's own clock.

    Its clock stands since it began to wait for a question that stops it, or, if it was cancelled
    while it waited, since its end.
    """
    waits = [
        step
        for step in (*open_questions(run, steps), *unread_answers(run, steps))
        if step.stops_clock
    ]
    if waits and run.status is Status.RUNNING:
        return min(step.started_s for step in waits)
    if waits and run.status is Status.CANCELLED and run.elapsed_s is not None:
        return run.elapsed_s
    return max((now - run.started_at).total_seconds() - run.clock_stopped_s, 0.0)


def question_to_answer(
    run: RunRecord, steps: Sequence[StepRecord], path: str | None = None
) -> StepRecord:
    """The question at this path; by default the first open one, else the last unread answer.

    Raises:
        NoOpenQuestion: there is none that can be answered.
    """
    if run.status is Status.COMPLETED:
        raise NoOpenQuestion(run.id, "has ended and needs no answer")
    is_open, unread = open_questions(run, steps), unread_answers(run, steps)
    if path is None and (is_open or unread):
        return is_open[0] if is_open else unread[-1]
    for step in (*is_open, *unread):
        if step.path == path:
            return step
    if not is_open:
        raise NoOpenQuestion(run.id, "has no open question")
    paths = ", ".join(step.path for step in is_open)
    raise NoOpenQuestion(run.id, f"has no open question at {path}; open are: {paths}")

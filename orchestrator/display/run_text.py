"""How a run went, in words. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.durations import shown
from store.printable_text import one_line
from store.records import CallRecord, RunRecord, Status, StepRecord


def deadline_outcome(run: RunRecord, taken_s: float | None) -> str:
    """Either "met" or "missed"; "" without a deadline, or if neither completed nor past it."""
    if run.deadline_s is None:
        return ""
    if run.error_type == "DeadlineExceeded" or (taken_s is not None and taken_s > run.deadline_s):
        return "missed"
    return "met" if run.status is Status.COMPLETED else ""


def deadline_line(run: RunRecord, taken_s: float | None) -> str:
    """A run's time against its deadline: "took 1.8 s of 60.0 s: deadline met, 58.2 s to spare".

    Args:
        taken_s: its duration, so far if it is running; None if unknown.
    """
    if taken_s is None:
        taken = "duration unknown"
    else:
        taken = f"{'so far' if run.elapsed_s is None else 'took'} {shown(taken_s)}"
    if run.deadline_s is None:
        return f"{taken}, no deadline"
    outcome = deadline_outcome(run, taken_s)
    if not outcome or taken_s is None:
        return f"{taken} of {shown(run.deadline_s)}"
    slack_s = run.deadline_s - taken_s
    how = f"{shown(slack_s)} to spare" if slack_s >= 0 else f"{shown(-slack_s)} late"
    return f"{taken} of {shown(run.deadline_s)}: deadline {outcome}, {how}"


def models_of(run: RunRecord, calls: Sequence[CallRecord]) -> tuple[str, ...]:
    """The models of a run: that of its default engine, then others that answered calls."""
    models = [run.model, *(call.model for call in calls)]
    return tuple(dict.fromkeys(model for model in models if model))


def has_random_weights(calls: Sequence[CallRecord]) -> bool:
    """Whether a model that answered has random weights, so that its text is meaningless."""
    return any(call.random_weights for call in calls)


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def origin_of(run: RunRecord) -> str:
    """Where a run was forked from: "fork of run 3f2a at plan"; "" if it was not forked."""
    origin = run.forked_from
    return "" if origin is None else one_line(f"fork of run {origin['run']} at {origin['at']}")


def error_of(record: RunRecord | StepRecord | CallRecord) -> str:
    """Type and message of the error that ended a run, step or call; "" if none or cancelled."""
    if not record.error_type or record.status is Status.CANCELLED:
        return ""
    kind, message = one_line(record.error_type), one_line(record.error_message or "")
    return f"{kind}: {message}" if message else kind

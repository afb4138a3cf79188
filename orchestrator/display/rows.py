"""The rows of a run's timeline: stages and calls with their times and sub-deadlines. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.display.glyphs import UNICODE, Glyphs
from orchestrator.display.slack import slack_of
from store.printable_text import one_line
from store.records import CallKind, CallRecord, RunRecord, Status

_WORST_FIRST = (Status.FAILED, Status.CANCELLED, Status.RUNNING, Status.COMPLETED)


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the timeline: a stage or a call. Times are seconds from the run's start.

    Attributes:
        ended_s: None if no end is recorded.
        due_s: the sub-deadline; None if it has none.
        tokens: output tokens of its calls.
    """

    label: str
    began_s: float
    ended_s: float | None
    due_s: float | None
    tokens: int
    status: Status = Status.COMPLETED
    is_call: bool = False

    @property
    def slack_s(self) -> float | None:
        """Sub-deadline minus end, in seconds; negative if late; None if either is missing."""
        return slack_of(self.due_s, self.ended_s)


def rows_of(
    run: RunRecord, calls: Sequence[CallRecord], *, glyphs: Glyphs = UNICODE, with_calls: bool
) -> list[Row]:
    """The rows of the timeline: stages in order, each followed by its calls if `with_calls`."""
    by_stage: dict[int, list[CallRecord]] = defaultdict(list)
    for call in calls:
        by_stage[call.stage].append(call)
    rows = []
    for stage, members in sorted(by_stage.items()):
        ends = [call.finished_s for call in members]
        recorded = [end for end in ends if end is not None]
        dues = [call.sub_deadline_s for call in members if call.sub_deadline_s is not None]
        rows.append(
            Row(
                label=f"{stage} {_names(run, members, glyphs)}",
                began_s=min(call.started_s for call in members),
                ended_s=max(recorded) if len(recorded) == len(ends) else None,
                due_s=min(dues, default=None),
                tokens=sum(call.output_tokens or 0 for call in members),
                status=_stage_status(members),
            )
        )
        if with_calls:
            rows += [call_row(call, f"  #{call.node} {call_name(run, call)}") for call in members]
    return rows


def limited(rows: Sequence[Row], most: int, *, noun: str = "stages") -> list[Row]:
    """At most this many rows: if there are more, the last one stands for all others."""
    if len(rows) <= most:
        return list(rows)
    others = rows[most - 1 :]
    ends = [row.ended_s for row in others if row.ended_s is not None]
    present = {row.status for row in others}
    return [
        *rows[: most - 1],
        Row(
            label=f"and {len(others):,} more {noun}",
            began_s=min(row.began_s for row in others),
            ended_s=max(ends) if len(ends) == len(others) else None,
            due_s=None,
            tokens=sum(row.tokens for row in others if not row.is_call),  # stages count them
            status=next(status for status in _WORST_FIRST if status in present),
        ),
    ]


def call_name(run: RunRecord, call: CallRecord) -> str:
    """The name of a call's step or tool, without the name of the run's model.

    One that a named engine answered has the engine's name instead of the model's: "review @judge".
    """
    if call.engine_name:
        return one_line(f"{call.identity.removeprefix(f'{call.model}:')} @{call.engine_name}")
    return one_line(call.identity.removeprefix(f"{run.model}:"))


def call_row(call: CallRecord, label: str) -> Row:
    """The row of one call."""
    return Row(
        label=label,
        began_s=call.started_s,
        ended_s=call.finished_s,
        due_s=call.sub_deadline_s,
        tokens=call.output_tokens or 0,
        status=call.status,
        is_call=True,
    )


def _stage_status(calls: Sequence[CallRecord]) -> Status:
    """Failed if one call of the stage failed; otherwise cancelled, or running, if one is."""
    present = {call.status for call in calls}
    order = (Status.FAILED, Status.CANCELLED, Status.RUNNING)
    return next((status for status in order if status in present), Status.COMPLETED)


def _names(run: RunRecord, calls: Sequence[CallRecord], glyphs: Glyphs) -> str:
    counts = Counter(
        f"{call_name(run, call)}{' (tool)' if call.kind is CallKind.TOOL else ''}" for call in calls
    )
    return ", ".join(
        f"{name} {glyphs.times}{count}" if count > 1 else name for name, count in counts.items()
    )

"""The table of `watch`: each run with its time against its deadline. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.table import Table
from rich.text import Text

from cli.render.describe import STATUS_STYLES, elapsed_s, short_ids
from cli.render.tables import NAME_CELLS, named_table
from orchestrator.display.glyphs import ASCII, UNICODE, Glyphs
from orchestrator.display.run_text import deadline_outcome
from orchestrator.durations import shown
from store.printable_text import one_line
from store.records import CallRecord, RunRecord, Status, StepKind, StepRecord

_GAP = 1
_TEXTS = ("flow", "run", "status", "deadline", "left")
_MIN_BAR_CELLS, _MAX_BAR_CELLS = 6, 24
_OPTIONAL = ("tokens", "steps", "busy", "deadline", "status")
"""Columns that are left out, in this order, if the terminal is narrow."""


@dataclass(frozen=True, slots=True)
class RunSummary:
    """The state of a run at one moment.

    Attributes:
        status: the status to show.
        num_steps: completed steps.
        num_running: calls that are running.
        num_done: calls that have ended, successfully or not.
        tokens: output tokens of its calls.
    """

    run: RunRecord
    status: str
    num_steps: int
    num_running: int
    num_done: int
    tokens: int

    @property
    def state(self) -> tuple[object, ...]:
        """All of it except the elapsed time, to detect changes."""
        counts = (self.num_steps, self.num_running, self.num_done, self.tokens)
        return (self.status, self.run.attempts, *counts)


def summarise(
    run: RunRecord, status: str, calls: Sequence[CallRecord], steps: Sequence[StepRecord]
) -> RunSummary:
    """Summarise a run from its records.

    Args:
        status: the status to show.
    """
    num_running = sum(call.status is Status.RUNNING for call in calls)
    return RunSummary(
        run=run,
        status=status,
        num_steps=sum(
            step.kind is StepKind.STEP and step.status is Status.COMPLETED for step in steps
        ),
        num_running=num_running,
        num_done=len(calls) - num_running,
        tokens=sum(call.output_tokens or 0 for call in calls),
    )


def overview(
    summaries: Sequence[RunSummary], *, now: datetime, width: int, ascii_only: bool = False
) -> Table:
    """A table with one row per run; narrow terminals get fewer columns."""
    glyphs = ASCII if ascii_only else UNICODE
    ids = short_ids([summary.run.id for summary in summaries])
    rows = [
        _cells(summary, short, now=now, glyphs=glyphs)
        for summary, short in zip(summaries, ids, strict=True)
    ]
    headings = ["flow", "run", "status", "elapsed", "deadline", "left", "steps", "calls", "busy"]
    headings.append("tokens")
    sizes = {
        heading: max([len(heading), *(len(row[heading]) for row in rows)]) for heading in headings
    }
    sizes |= {"flow": NAME_CELLS, "deadline": max(_MIN_BAR_CELLS, len("deadline"))}
    for heading in _OPTIONAL:
        if _needed(sizes) <= width:
            break
        headings.remove(heading)
        del sizes[heading]
    if "deadline" in sizes:
        flow_cells = max([NAME_CELLS, *(len(one_line(summary.run.flow)) for summary in summaries)])
        spare = width - _needed(sizes) - (flow_cells - NAME_CELLS)
        cells = min(sizes["deadline"] + max(spare, 0), _MAX_BAR_CELLS)
        for row, summary in zip(rows, summaries, strict=True):
            row["deadline"] = bar(summary, now=now, cells=cells, glyphs=glyphs)
    return named_table(
        headings,
        [[row[heading] for heading in headings] for row in rows],
        width=width,
        gap=_GAP,
        texts=_TEXTS,
        glyphs=glyphs,
    )


def bar(summary: RunSummary, *, now: datetime, cells: int, glyphs: Glyphs) -> Text:
    """A bar of the time used of the deadline; empty without a deadline."""
    taken_s = elapsed_s(summary.run, summary.status, now)
    if summary.run.deadline_s is None or taken_s is None:
        return Text()
    if taken_s > summary.run.deadline_s:
        return Text(glyphs.late * cells, style="red")
    used = taken_s / summary.run.deadline_s * cells
    whole = int(used)
    drawn = glyphs.work * whole
    if whole < cells:
        drawn += glyphs.partial[int((used - whole) * len(glyphs.partial))]
    style = "cyan" if summary.status == Status.RUNNING else STATUS_STYLES.get(summary.status, "")
    return Text.assemble((drawn, style), (glyphs.rule * (cells - len(drawn)), "dim"))


def plain_line(summary: RunSummary, *, now: datetime) -> str:
    """A run in one line, for outputs that are not terminals."""
    run = summary.run
    taken_s = elapsed_s(run, summary.status, now)
    clock = "duration unknown" if taken_s is None else shown(taken_s)
    if run.deadline_s is not None:
        clock += f" of {shown(run.deadline_s)}"
    if summary.status != Status.RUNNING:
        outcome = deadline_outcome(run, taken_s)
        clock += f", deadline {outcome}" if outcome else ""
    elif run.deadline_s is not None and taken_s is not None:
        left_s = run.deadline_s - taken_s
        clock += f", {shown(left_s)} left" if left_s >= 0 else f", {shown(-left_s)} over"
    return (
        f"{one_line(run.flow)} {run.id} {summary.status}: {clock}; "
        f"steps: {summary.num_steps} done; "
        f"calls: {summary.num_running} running, {summary.num_done} done, {summary.tokens:,} tokens"
    )


def _needed(sizes: dict[str, int]) -> int:
    return sum(size + _GAP for size in sizes.values())


def _cells(summary: RunSummary, short: str, *, now: datetime, glyphs: Glyphs) -> dict[str, Text]:
    """Heading -> cell of a run's row; the bar is added when its width is known."""
    run = summary.run
    taken_s = elapsed_s(run, summary.status, now)
    return {
        "flow": Text(one_line(run.flow)),
        "run": Text(short, style="bold"),
        "status": Text(summary.status, style=STATUS_STYLES.get(summary.status, "")),
        "elapsed": Text(glyphs.none if taken_s is None else shown(taken_s)),
        "deadline": Text(),
        "left": _left(summary, taken_s),
        "steps": Text(f"{summary.num_steps:,}"),
        "calls": Text(f"{summary.num_done:,}"),
        "busy": Text(
            f"{summary.num_running:,}" if summary.status == Status.RUNNING else glyphs.none
        ),
        "tokens": Text(f"{summary.tokens:,}"),
    }


def _left(summary: RunSummary, taken_s: float | None) -> Text:
    """The time left to the deadline; for an ended run, whether it met the deadline."""
    if summary.run.deadline_s is None:
        return Text("no limit", style="dim")
    outcome = deadline_outcome(summary.run, taken_s)
    if summary.status != Status.RUNNING or taken_s is None:
        return Text(outcome, style="red" if outcome == "missed" else "green")
    left_s = summary.run.deadline_s - taken_s
    return Text(shown(left_s), style="red" if left_s < 0 else "")

"""The runs of a store at a glance: a line each, with its clock against its deadline. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from rich.table import Table
from rich.text import Text

from cli.render.describe import STATUS_STYLES, elapsed_s, promise, short_ids
from cli.render.tables import NAME_CELLS, named_table
from cli.terminal.glyphs import ASCII, UNICODE, Glyphs
from cli.terminal.sanitize import one_line
from orchestrator.durations import shown
from store.records import CallRecord, RunRecord, Status, StepKind, StepRecord

_GAP = 1
_TEXTS = ("flow", "run", "status", "deadline", "left")
_LEAST_BAR, _MOST_BAR = 6, 24
_GIVE_UP = ("tokens", "steps", "busy", "deadline", "status")  # in this order, where it is narrow


@dataclass(frozen=True, slots=True)
class RunSummary:
    """What is seen of a run at one moment; `status` is the one to show.

    Attributes:
        num_steps: that were completed.
        num_running: calls at work.
        num_done: calls that have ended, well or not.
        tokens: put out by its calls.
    """

    run: RunRecord
    status: str
    num_steps: int
    num_running: int
    num_done: int
    tokens: int

    @property
    def state(self) -> tuple[object, ...]:
        """All of it but the time that goes by."""
        counts = (self.num_steps, self.num_running, self.num_done, self.tokens)
        return (self.status, self.run.attempts, *counts)


def summarise(
    run: RunRecord, status: str, calls: Sequence[CallRecord], steps: Sequence[StepRecord]
) -> RunSummary:
    """A run at a glance, given its records and the status to show."""
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
    glances: Sequence[RunSummary], *, now: datetime, width: int, ascii_only: bool = False
) -> Table:
    """A table with a line for each run, its less important columns left out where it is narrow."""
    glyphs = ASCII if ascii_only else UNICODE
    ids = short_ids([one.run.id for one in glances])
    rows = [
        _cells(one, short, now=now, glyphs=glyphs) for one, short in zip(glances, ids, strict=True)
    ]
    heads = ["flow", "run", "status", "elapsed", "deadline", "left", "steps", "calls", "busy"]
    heads.append("tokens")
    sizes = {head: max([len(head), *(len(row[head]) for row in rows)]) for head in heads}
    sizes |= {"flow": NAME_CELLS, "deadline": max(_LEAST_BAR, len("deadline"))}
    for head in _GIVE_UP:
        if _needed(sizes) <= width:
            break
        heads.remove(head)
        del sizes[head]
    if "deadline" in sizes:
        longest = max([NAME_CELLS, *(len(one_line(one.run.flow)) for one in glances)])
        spare = width - _needed(sizes) - (longest - NAME_CELLS)
        cells = min(sizes["deadline"] + max(spare, 0), _MOST_BAR)
        for row, one in zip(rows, glances, strict=True):
            row["deadline"] = bar(one, now=now, cells=cells, glyphs=glyphs)
    return named_table(
        heads,
        [[row[head] for head in heads] for row in rows],
        width=width,
        gap=_GAP,
        texts=_TEXTS,
        glyphs=glyphs,
    )


def bar(one: RunSummary, *, now: datetime, cells: int, glyphs: Glyphs) -> Text:
    """How much of its deadline a run has used up; empty without a deadline."""
    taken_s = elapsed_s(one.run, one.status, now)
    if one.run.deadline_s is None or taken_s is None:
        return Text()
    if taken_s > one.run.deadline_s:
        return Text(glyphs.late * cells, style="red")
    used = taken_s / one.run.deadline_s * cells
    whole = int(used)
    drawn = glyphs.work * whole
    if whole < cells:
        drawn += glyphs.partial[int((used - whole) * len(glyphs.partial))]
    style = "cyan" if one.status == Status.RUNNING else STATUS_STYLES.get(one.status, "")
    return Text.assemble((drawn, style), (glyphs.rule * (cells - len(drawn)), "dim"))


def plain_line(one: RunSummary, *, now: datetime) -> str:
    """A run in one line, for where nothing is drawn."""
    run = one.run
    taken_s = elapsed_s(run, one.status, now)
    clock = "nobody knows how long it took" if taken_s is None else shown(taken_s)
    if run.deadline_s is not None:
        clock += f" of {shown(run.deadline_s)}"
    if one.status != Status.RUNNING:
        kept = promise(run, taken_s)
        clock += f", deadline {kept}" if kept else ""
    elif run.deadline_s is not None and taken_s is not None:
        left_s = run.deadline_s - taken_s
        clock += f", {shown(left_s)} left" if left_s >= 0 else f", {shown(-left_s)} over"
    return (
        f"{one_line(run.flow)} {run.id} {one.status}: {clock}; steps: {one.num_steps} done; "
        f"calls: {one.num_running} running, {one.num_done} done, {one.tokens:,} tokens"
    )


def _needed(sizes: dict[str, int]) -> int:
    return sum(size + _GAP for size in sizes.values())


def _cells(one: RunSummary, short: str, *, now: datetime, glyphs: Glyphs) -> dict[str, Text]:
    """A run's cells by their column's head; its bar is drawn once there is known to be room."""
    run = one.run
    taken_s = elapsed_s(run, one.status, now)
    return {
        "flow": Text(one_line(run.flow)),
        "run": Text(short, style="bold"),
        "status": Text(one.status, style=STATUS_STYLES.get(one.status, "")),
        "elapsed": Text(glyphs.none if taken_s is None else shown(taken_s)),
        "deadline": Text(),
        "left": _left(one, taken_s),
        "steps": Text(f"{one.num_steps:,}"),
        "calls": Text(f"{one.num_done:,}"),
        "busy": Text(f"{one.num_running:,}" if one.status == Status.RUNNING else glyphs.none),
        "tokens": Text(f"{one.tokens:,}"),
    }


def _left(one: RunSummary, taken_s: float | None) -> Text:
    """How much time a run has left or, if it has ended, whether it was in time."""
    if one.run.deadline_s is None:
        return Text("no limit", style="dim")
    kept = promise(one.run, taken_s)
    if one.status != Status.RUNNING or taken_s is None:
        return Text(kept, style="red" if kept == "missed" else "green")
    left_s = one.run.deadline_s - taken_s
    return Text(shown(left_s), style="red" if left_s < 0 else "")

"""A run's timeline in text: when each stage ran, and its sub-deadline. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rich.text import Text

from orchestrator.display.axis import Axis, axis_for
from orchestrator.display.glyphs import ASCII, UNICODE, Glyphs
from orchestrator.display.rows import Row, limited, rows_of
from orchestrator.durations import shown
from store.records import CallRecord, RunRecord, Status

MAX_ROWS = 200
"""Of more rows, the last one stands for all others."""

MIN_WIDTH = 40
"""Columns that labels, axis and numbers need."""

_MIN_WIDTH_FOR_DUE, _MIN_WIDTH_FOR_TOKENS = 72, 96
_MAX_LABEL_CELLS, _MAX_LABEL_SHARE = 44, 0.3
_LEGEND_GAP = "   "

Cell = tuple[str, str]
"""One character and its style."""


def timeline_lines(
    run: RunRecord,
    calls: Sequence[CallRecord],
    *,
    width: int,
    ascii_only: bool = False,
    with_calls: bool = False,
    now_s: float | None = None,
) -> list[Text]:
    """Draw a run: a bar for each stage on a common time axis, in at most MAX_ROWS rows.

    Args:
        width: maximum width of a line, in columns; at least MIN_WIDTH are used.
        with_calls: also draw a bar for each call, below its stage.
        now_s: for a run that is still running: seconds since its start.
    """
    glyphs = ASCII if ascii_only else UNICODE
    if not calls:
        return [Text("no calls were made", style="dim")]
    width = max(width, MIN_WIDTH)
    noun = "stages and calls" if with_calls else "stages"
    rows = limited(rows_of(run, calls, glyphs=glyphs, with_calls=with_calls), MAX_ROWS, noun=noun)
    ends = [row.ended_s if row.ended_s is not None else row.began_s for row in rows]
    work_end_s = max([*ends, run.elapsed_s or 0.0, now_s or 0.0])
    columns = _columns(width)
    label_cells = min(
        max(len(row.label) for row in rows), _MAX_LABEL_CELLS, int(_MAX_LABEL_SHARE * width)
    )
    cells = width - label_cells - 1 - sum(size for _, size in columns)
    axis = axis_for(work_end_s=work_end_s, deadline_s=run.deadline_s, cells=cells)
    head = "".join(name.rjust(size) for name, size in columns)
    lines = [
        Text(f"{'':{label_cells}} {axis.labels()}{head}", style="dim"),
        Text.assemble(" " * (label_cells + 1), *rule(axis, glyphs)),
    ]
    for row in rows:
        label = fitted(row.label, label_cells, glyphs)
        style = "dim" if row.is_call else "red" if row.status is Status.FAILED else ""
        lines.append(
            Text.assemble(
                (f"{label:{label_cells}} ", style),
                *bar(row, axis, glyphs, now_s=work_end_s),
                *(_number(row, name, size, glyphs) for name, size in columns),
            )
        )
    return [*lines, *legend(run, rows, axis, glyphs, width)]


def fitted(label: str, cells: int, glyphs: Glyphs) -> str:
    """The label, truncated with an ellipsis if it is longer than `cells`."""
    if len(label) <= cells:
        return label
    return label[: cells - len(glyphs.ellipsis)] + glyphs.ellipsis


def _columns(width: int) -> list[tuple[str, int]]:
    """The columns to the right of the bars: heading and width."""
    columns = [("ended", 9), ("due", 9), ("slack", 10)]
    if width < _MIN_WIDTH_FOR_DUE:
        columns.remove(("due", 9))
    if width >= _MIN_WIDTH_FOR_TOKENS:
        columns.append(("tokens", 8))
    return columns


def _number(row: Row, name: str, size: int, glyphs: Glyphs) -> tuple[str, str]:
    style = "dim" if row.is_call else ""
    if name == "tokens":
        return (f"{row.tokens:,}" if row.tokens else glyphs.none).rjust(size), style
    if name == "slack":
        if row.slack_s is None:
            return glyphs.none.rjust(size), "dim"
        sign = "+" if row.slack_s >= 0 else "-"
        return f"{sign}{shown(abs(row.slack_s))}".rjust(size), _slack_style(row)
    at_s = row.due_s if name == "due" else row.ended_s
    return (glyphs.none if at_s is None else shown(at_s)).rjust(size), style


def _slack_style(row: Row) -> str:
    assert row.slack_s is not None
    colour = "green" if row.slack_s >= 0 else "red"
    return f"dim {colour}" if row.is_call else colour


def rule(axis: Axis, glyphs: Glyphs) -> list[Cell]:
    """The line below the labels, with a tick at each labelled time."""
    ticks = axis.tick_cells()
    cells = [(glyphs.tick if at in ticks else glyphs.rule, "dim") for at in range(axis.cells)]
    mark_deadline(cells, axis, glyphs)
    return cells


def bar(row: Row, axis: Axis, glyphs: Glyphs, *, now_s: float) -> list[Cell]:
    """A row's bar, in another colour past its sub-deadline, with the marks of deadlines."""
    first = axis.cell(row.began_s)
    drawn = _bar_glyphs(row, axis, glyphs, first, now_s=now_s)
    cells = [(" ", "")] * axis.cells
    for at, glyph in enumerate(drawn, start=first):
        cells[at] = (glyph, _bar_style(row))
    beyond = first + len(drawn)
    due = None if row.due_s is None else axis.cell(row.due_s)
    if due is not None and row.slack_s is not None and row.slack_s < 0:
        for at in range(min(due + 1, beyond - 1), beyond):
            cells[at] = (glyphs.late, "red")
    mark_deadline(cells, axis, glyphs, spare=first)
    if due is not None and due != axis.deadline_cell:
        beside = due + (due == first)  # do not hide a bar of one cell
        if beside < axis.cells and beside != axis.deadline_cell:
            cells[beside] = (glyphs.due, "bold cyan")
    return cells


def _bar_glyphs(row: Row, axis: Axis, glyphs: Glyphs, first: int, *, now_s: float) -> str:
    """The characters of the bar, at least one, from its first cell on."""
    end = axis.place(max(now_s if row.ended_s is None else row.ended_s, row.began_s))
    whole = max(int(end), first)
    drawn = (glyphs.unended if row.ended_s is None else glyphs.work) * (whole - first)
    if row.ended_s is not None and end > whole:
        drawn += glyphs.partial[int((end - whole) * len(glyphs.partial))]
    if not drawn:
        drawn = glyphs.unended if row.ended_s is None else glyphs.partial[0]
    return drawn[: axis.cells - first]


def _bar_style(row: Row) -> str:
    if row.status is Status.FAILED:
        return "red"
    if row.ended_s is None or row.status is Status.CANCELLED:
        return "yellow"
    return "dim green" if row.is_call else "green"


def mark_deadline(
    cells: list[Cell], axis: Axis, glyphs: Glyphs, *, spare: int | None = None
) -> None:
    """Mark the run's deadline and the break before it, except in the cell `spare`."""
    if axis.broken:
        cells[axis.scale_cells] = (glyphs.gap, "dim")
    if axis.deadline_cell is not None and axis.deadline_cell != spare:
        cells[axis.deadline_cell] = (glyphs.deadline, "bold magenta")


def legend(
    run: RunRecord, rows: Sequence[Row], axis: Axis, glyphs: Glyphs, width: int
) -> list[Text]:
    """The meanings of the marks that are drawn."""
    entries = [(glyphs.work, "running", "green")]
    if any(row.slack_s is not None and row.slack_s < 0 for row in rows):
        entries.append((glyphs.late, "past its sub-deadline", "red"))
    if any(row.ended_s is None for row in rows):
        meaning = "has not ended" if run.status is Status.RUNNING else "did not end"
        entries.append((glyphs.unended, meaning, "yellow"))
    if any(row.due_s is not None for row in rows):
        entries.append((glyphs.due, "sub-deadline", "bold cyan"))
    if run.deadline_s is not None:
        where = ", not to scale" if axis.broken else ""
        entries.append(
            (glyphs.deadline, f"deadline {shown(run.deadline_s)}{where}", "bold magenta")
        )
    parts = [
        Text.assemble((glyph, style), (f" {meaning}", "dim")) for glyph, meaning, style in entries
    ]
    return packed(parts, width=width)


def packed(parts: Sequence[Text], *, width: int) -> list[Text]:
    """A legend's entries side by side, wrapped to `width`."""
    lines = [Text()]
    for part in parts:
        if lines[-1].plain and len(lines[-1]) + len(_LEGEND_GAP) + len(part) > width:
            lines.append(Text())
        lines[-1] = Text.assemble(lines[-1], _LEGEND_GAP if lines[-1].plain else "", part)
    return lines

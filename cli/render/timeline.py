"""A run's records -> a picture of it in text: when each stage ran, and when it should have ended.

Pure: the same records and width give the same picture.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from cli.render.axis import Axis, axis_for
from cli.terminal.glyphs import ASCII, UNICODE, Glyphs
from cli.terminal.sanitize import one_line
from orchestrator.durations import shown
from store.records import CallKind, CallRecord, RunRecord, Status

_NARROW, _WIDE = 72, 96  # below: no `due` column; from: tokens too
_LABEL_MOST, _LABEL_SHARE = 44, 0.3
_LEGEND_GAP = "   "

Cell = tuple[str, str]
"""One character and its style."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the picture: a stage, or a call. Times in seconds from the run's start.

    Attributes:
        ended_s: None: it never ended, as far as the records know.
        due_s: its sub-deadline; None: it has none.
        tokens: put out by its calls.
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
        """How much earlier than its sub-deadline it ended; negative: later."""
        if self.ended_s is None or self.due_s is None:
            return None
        return self.due_s - self.ended_s


def timeline(
    run: RunRecord,
    calls: Sequence[CallRecord],
    *,
    width: int,
    ascii_only: bool = False,
    with_calls: bool = False,
    now_s: float | None = None,
) -> list[Text]:
    """Draw a run: a bar for each stage on a common time axis.

    Args:
        width: columns that no line exceeds.
        with_calls: below each stage, a bar for each of its calls.
        now_s: for a run that goes on: seconds since its start.
    """
    glyphs = ASCII if ascii_only else UNICODE
    if not calls:
        return [Text("no calls were made", style="dim")]
    rows = rows_of(run, calls, glyphs=glyphs, with_calls=with_calls)
    ends = [row.ended_s if row.ended_s is not None else row.began_s for row in rows]
    work_end_s = max([*ends, run.elapsed_s or 0.0, now_s or 0.0])
    columns = _columns(width)
    label_cells = min(max(len(row.label) for row in rows), _LABEL_MOST, int(_LABEL_SHARE * width))
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


def rows_of(
    run: RunRecord, calls: Sequence[CallRecord], *, glyphs: Glyphs = UNICODE, with_calls: bool
) -> list[Row]:
    """The lines of the picture: stages in order, each followed by its calls if asked for."""
    by_stage: dict[int, list[CallRecord]] = defaultdict(list)
    for call in calls:
        by_stage[call.stage].append(call)
    rows = []
    for stage, members in sorted(by_stage.items()):
        ends = [call.finished_s for call in members]
        known = [end for end in ends if end is not None]
        dues = [call.sub_deadline_s for call in members if call.sub_deadline_s is not None]
        rows.append(
            Row(
                label=f"{stage} {_names(run, members, glyphs)}",
                began_s=min(call.started_s for call in members),
                ended_s=max(known) if len(known) == len(ends) else None,
                due_s=min(dues, default=None),
                tokens=sum(call.output_tokens or 0 for call in members),
                status=_worst(members),
            )
        )
        if with_calls:
            rows += [_call_row(run, call) for call in members]
    return rows


def call_name(run: RunRecord, call: CallRecord) -> str:
    """What a call is called: its step's or tool's name, without the model's that all share."""
    return one_line(call.identity.removeprefix(f"{run.model}:"))


def fitted(label: str, cells: int, glyphs: Glyphs) -> str:
    """A label that fits, its end left out where it does not."""
    if len(label) <= cells:
        return label
    return label[: cells - len(glyphs.ellipsis)] + glyphs.ellipsis


def _call_row(run: RunRecord, call: CallRecord) -> Row:
    return Row(
        label=f"  #{call.node} {call_name(run, call)}",
        began_s=call.started_s,
        ended_s=call.finished_s,
        due_s=call.sub_deadline_s,
        tokens=call.output_tokens or 0,
        status=call.status,
        is_call=True,
    )


def _worst(calls: Sequence[CallRecord]) -> Status:
    """What a stage is coloured by: one failed call is enough."""
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


def _columns(width: int) -> list[tuple[str, int]]:
    """The numbers beside the bars, each with its width."""
    columns = [("ended", 9), ("due", 9), ("slack", 10)]
    if width < _NARROW:
        columns.remove(("due", 9))
    if width >= _WIDE:
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
    """The line below the labels, with a tick at each of their moments."""
    ticks = axis.tick_cells()
    cells = [(glyphs.tick if at in ticks else glyphs.rule, "dim") for at in range(axis.cells)]
    mark_deadline(cells, axis, glyphs)
    return cells


def bar(row: Row, axis: Axis, glyphs: Glyphs, *, now_s: float) -> list[Cell]:
    """A row's bar, one colour up to its sub-deadline and another past it, and the marks."""
    first = axis.cell(row.began_s)
    drawn = _drawn(row, axis, glyphs, first, now_s=now_s)
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
        beside = due + (due == first)  # a bar of one cell must stay to be seen
        if beside < axis.cells and beside != axis.deadline_cell:
            cells[beside] = (glyphs.due, "bold cyan")
    return cells


def _drawn(row: Row, axis: Axis, glyphs: Glyphs, first: int, *, now_s: float) -> str:
    """The bar's own characters, at least one, from its first cell on."""
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
    """Mark the run's deadline, and the break before it, but for one cell to be spared."""
    if axis.broken:
        cells[axis.scale_cells] = (glyphs.gap, "dim")
    if axis.deadline_cell is not None and axis.deadline_cell != spare:
        cells[axis.deadline_cell] = (glyphs.deadline, "bold magenta")


def legend(
    run: RunRecord, rows: Sequence[Row], axis: Axis, glyphs: Glyphs, width: int
) -> list[Text]:
    """What the marks mean; only of those that were drawn, in as many lines as it takes."""
    entries = [(glyphs.work, "at work", "green")]
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
    """A legend's entries side by side, in as many lines as it takes."""
    lines = [Text()]
    for part in parts:
        if lines[-1].plain and len(lines[-1]) + len(_LEGEND_GAP) + len(part) > width:
            lines.append(Text())
        lines[-1] = Text.assemble(lines[-1], _LEGEND_GAP if lines[-1].plain else "", part)
    return lines

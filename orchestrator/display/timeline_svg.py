"""A run's timeline as a picture: bars over time, sub-deadlines as marks, the deadline a line."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.display.axis import Axis, axis_for, label_of
from orchestrator.display.picture_rows import PictureRow, picture_rows
from orchestrator.display.run_text import (
    deadline_line,
    deadline_outcome,
    error_of,
    has_random_weights,
    models_of,
)
from orchestrator.durations import shown
from patterns import svg
from patterns.svg import Picture
from serving.engine.setup.config import CAVEATS
from store.printable_text import one_line
from store.records import CallRecord, RunRecord, Status, StepRecord

_WIDTH, _MARGIN, _ROW, _BAR = 880, 14, 22, 12
_CELL = svg.CHARACTER_PX  # of the axis, so that its labels have the space that they need
_LETTER = 5.7  # mean width of a letter of a sentence, in pixels
_MIN_LABEL, _MAX_LABEL, _INDENT = 60, 230, 12
_ENDED, _SLACK = 74, 74  # widths of the columns on the right
_TOP = 84
FILLS = {"llm": svg.COLOURS[0], "tool": svg.COLOURS[1], "step": svg.GREY}
_DIM = 'fill-opacity="0.7"'
_CUT = f'fill="{svg.RED}" fill-opacity="0.3" stroke="{svg.RED}" stroke-dasharray="3 2"'


def timeline_picture(
    run: RunRecord,
    calls: Sequence[CallRecord],
    steps: Sequence[StepRecord],
    *,
    now_s: float | None = None,
) -> Picture:
    """The picture of a run.

    Args:
        now_s: for a run that is still running: seconds since its start.
    """
    rows, are_stages = picture_rows(run, calls, steps)
    ends = [each.row.ended_s or each.row.began_s for each in rows]
    work_end_s = max([*ends, run.elapsed_s or 0.0, now_s or 0.0])
    widest = max((len(each.row.label) * _CELL + each.depth * _INDENT for each in rows), default=0)
    left = _MARGIN + min(max(widest, _MIN_LABEL), _MAX_LABEL) + 12
    cells = int((_WIDTH - left - _ENDED - _SLACK - _MARGIN) / _CELL)
    axis = axis_for(work_end_s=work_end_s, deadline_s=run.deadline_s, cells=cells)
    plot = _Plot(axis, left, now_s=work_end_s)
    bottom = _TOP + max(len(rows), 1) * _ROW
    shapes = [*_heading(run, calls, now_s), *plot.grid(bottom)]
    if not rows:
        shapes.append(svg.label(_MARGIN, _TOP + 14, "no steps and no calls", style=_DIM))
    for at, each in enumerate(rows):
        shapes += plot.row(each, _TOP + at * _ROW)
    shapes += plot.deadline(bottom)
    shapes += _legend(rows, are_stages, y=bottom + 22)
    title = f"{one_line(run.flow)}, {run.status}: {deadline_line(run, run.elapsed_s or now_s)}"
    return Picture(_WIDTH, bottom + 38, title, tuple(shapes))


def _heading(run: RunRecord, calls: Sequence[CallRecord], now_s: float | None) -> list[str]:
    taken_s = now_s if run.elapsed_s is None else run.elapsed_s
    went_wrong = deadline_outcome(run, taken_s) == "missed" or run.status is Status.FAILED
    red = f'fill="{svg.RED}"' if went_wrong else ""
    models = models_of(run, calls)
    named = f", model{'s' if len(models) > 1 else ''} {', '.join(models)}" if models else ""
    where = one_line(f"run {run.id}{named}")
    caveat = CAVEATS.get(run.model, "random weights" if run.random_weights else "")
    if not run.random_weights and has_random_weights(calls):
        caveat = "of one model: random weights"
    state = str(run.status)
    if error := error_of(run):
        state = f"{state}: {error}"
    name = svg.fitted(one_line(run.flow), 300)
    room = _WIDTH - 2 * _MARGIN - len(caveat) * _LETTER
    return [
        svg.label(_MARGIN, 22, name, style='font-size="14" font-weight="bold"'),
        svg.label(_WIDTH - _MARGIN, 22, svg.fitted(where, 540), anchor="end", style=_DIM),
        svg.label(
            _MARGIN,
            42,
            svg.fitted(f"{deadline_line(run, taken_s)} · {state}", room),
            style=red,
            tip=error,
        ),
        svg.label(_WIDTH - _MARGIN, 42, caveat, anchor="end", style=_DIM),
    ]


def _legend(rows: Sequence[PictureRow], are_stages: bool, *, y: float) -> list[str]:
    """The meanings of what is drawn, side by side."""
    kinds = {each.kind for each in rows} | {"step" for each in rows if each.around is not None}
    stages = " (a row is a stage)" if are_stages else ""
    entries = [
        (f'fill="{FILLS[kind]}"{_opacity(kind)}', f"{meaning}{stages}")
        for kind, meaning in (("llm", "LLM call"), ("tool", "tool"), ("step", "step"))
        if kind in kinds
    ]
    if any(_is_late(each) for each in rows):
        entries.append((f'fill="{svg.RED}"', "past its sub-deadline"))
    if any(_is_cut(each) for each in rows):
        entries.append((_CUT, "cut off or failed"))
    shapes, x = [], float(_MARGIN)
    for style, meaning in entries:
        shapes += [svg.box(x, y - 9, 10, 10, style=style), svg.label(x + 15, y, meaning)]
        x += 15 + len(meaning) * _LETTER + 16
    if any(each.row.due_s is not None for each in rows):
        shapes += [svg.line(x + 3, y - 11, x + 3, y + 3), svg.label(x + 11, y, "sub-deadline")]
    return shapes


class _Plot:
    """Places times on the picture.

    Args:
        left: where the axis begins, in pixels.
        now_s: until when bars without an end are drawn.
    """

    def __init__(self, axis: Axis, left: float, *, now_s: float) -> None:
        self._axis = axis
        self._left = left
        self._now_s = now_s
        self._right = left + axis.cells * _CELL

    def _x(self, at_s: float) -> float:
        if self._axis.broken and at_s > self._axis.end_s:
            return self._left + (self._axis.scale_cells + 0.5) * _CELL
        return self._left + self._axis.place(at_s) * _CELL

    def grid(self, bottom: float) -> list[str]:
        """The axis with the labelled times, and the headings of the columns."""
        shapes = []
        for at_s in self._axis.ticks():
            x = self._x(at_s)
            shapes.append(svg.line(x, _TOP - 6, x, bottom, style='stroke-opacity="0.15"'))
            if not self._hides(x, label_of(at_s)):
                shapes.append(svg.label(x, _TOP - 11, label_of(at_s), style=_DIM))
        end = self._left + self._axis.scale_cells * _CELL
        shapes.append(svg.line(self._left, _TOP - 6, end, _TOP - 6, style='stroke-opacity="0.5"'))
        columns = (("ended", self._right + _ENDED), ("slack", self._right + _ENDED + _SLACK))
        return shapes + [
            svg.label(x, _TOP - 11, name, anchor="end", style=_DIM) for name, x in columns
        ]

    def _hides(self, x: float, text: str) -> bool:
        """Whether the line of the deadline would go through a text."""
        deadline_s = self._axis.deadline_s
        if deadline_s is None or self._axis.broken:
            return False
        return x - 3 <= self._x(deadline_s) <= x + len(text) * _CELL

    def deadline(self, bottom: float) -> list[str]:
        """The line of the run's deadline; nothing without one."""
        axis = self._axis
        if axis.deadline_s is None:
            return []
        x = self._right - _CELL / 2 if axis.broken else self._x(axis.deadline_s)
        text = f"deadline {shown(axis.deadline_s)}{', not to scale' if axis.broken else ''}"
        shapes = [
            svg.line(x, _TOP - 20, x, bottom + 4, style='stroke-width="2"'),
            svg.label(x, _TOP - 24, text, anchor="end"),
        ]
        if axis.broken:
            dots = 'stroke-dasharray="2 3" stroke-opacity="0.5"'
            shapes.append(svg.line(x - 1.5 * _CELL, _TOP - 6, x, _TOP - 6, style=dots))
        return shapes

    def row(self, each: PictureRow, y: float) -> list[str]:
        """A row: its name, its bar with the mark of its sub-deadline, its end and its slack."""
        row, indent = each.row, each.depth * _INDENT
        room = self._left - _MARGIN - indent - 8
        shapes = [
            svg.label(_MARGIN + indent, y + 15, svg.fitted(row.label, room), tip=row.label),
            *self._bars(each, y + (_ROW - _BAR) / 2),
        ]
        if row.due_s is not None and row.due_s != self._axis.deadline_s:
            x = self._x(row.due_s)
            shapes.append(svg.line(x, y + 2, x, y + _ROW - 2, style='stroke-width="1.5"'))
        ended = "" if row.ended_s is None else shown(row.ended_s)
        shapes.append(svg.label(self._right + _ENDED, y + 15, ended, anchor="end", style=_DIM))
        if row.slack_s is not None:
            sign, late = ("+", "") if row.slack_s >= 0 else ("−", f'fill="{svg.RED}"')  # noqa: RUF001
            slack = f"{sign}{shown(abs(row.slack_s))}"
            x = self._right + _ENDED + _SLACK
            shapes.append(svg.label(x, y + 15, slack, anchor="end", style=late or _DIM))
        return shapes

    def _bars(self, each: PictureRow, y: float) -> list[str]:
        row = each.row
        end_s = self._now_s if row.ended_s is None else row.ended_s
        tip = _tip(each)
        shapes = []
        if each.around is not None and not _is_cut(each):
            began_s, ended_s = each.around
            until_s = self._now_s if ended_s is None else ended_s
            shapes.append(self._bar(began_s, until_s, y, f'fill="{svg.GREY}"{_opacity("step")}'))
        if _is_cut(each):
            return [*shapes, self._bar(row.began_s, end_s, y, _CUT, tip)]
        running = ' fill-opacity="0.5"' if row.ended_s is None else _opacity(each.kind)
        fill = f'fill="{FILLS[each.kind]}"{running}'
        shapes.append(self._bar(row.began_s, end_s, y, fill, tip))
        if _is_late(each):
            assert row.due_s is not None
            late_s = max(row.due_s, row.began_s)
            shapes.append(self._bar(late_s, end_s, y, f'fill="{svg.RED}"', tip))
        return shapes

    def _bar(self, began_s: float, ended_s: float, y: float, style: str, tip: str = "") -> str:
        x = min(self._x(began_s), self._right - 2)
        return svg.box(x, y, max(self._x(ended_s) - x, 2.0), _BAR, style=style, tip=tip)


def _is_late(each: PictureRow) -> bool:
    slack_s = each.row.slack_s
    return slack_s is not None and slack_s < 0 and not _is_cut(each)


def _is_cut(each: PictureRow) -> bool:
    return each.row.status in (Status.FAILED, Status.CANCELLED)


def _opacity(kind: str) -> str:
    return ' fill-opacity="0.35"' if kind == "step" else ""


def _tip(each: PictureRow) -> str:
    """What is shown while the pointer is on a bar."""
    row = each.row
    parts = [f"{row.label}: {row.status}, from {shown(row.began_s)}"]
    if row.ended_s is not None:
        parts.append(f"to {shown(row.ended_s)}")
    if row.due_s is not None:
        parts.append(f"(due at {shown(row.due_s)})")
    if row.tokens:
        parts.append(f"{row.tokens:,} tokens")
    return " ".join(parts)

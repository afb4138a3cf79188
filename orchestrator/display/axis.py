"""A time axis in character cells: the position of each time, and the times to label."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from orchestrator.durations import shown

BREAK_AT = 3.0
"""The deadline is drawn after a break in the axis if it is later than this times the work's end."""

_BREAK_CELLS = 2  # the break itself, and the deadline beyond it
_MARGIN = 1.04  # factor that leaves space after the last end, so that the end is visible
_TICK_GAP = 4  # minimum cells between two labels
_MIN_STEP_CELLS = 3
_TICK_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 36000, 86400)


@dataclass(frozen=True, slots=True)
class Axis:
    """Maps seconds from a run's start to cells.

    Attributes:
        cells: width of the axis.
        end_s: the time at the end of the scale.
        deadline_s: the run's deadline; None without one.
        broken: whether the deadline is in the last cell, not to scale, after a break.
    """

    cells: int
    end_s: float
    deadline_s: float | None = None
    broken: bool = False

    @property
    def scale_cells(self) -> int:
        """The number of cells that are to scale."""
        return self.cells - _BREAK_CELLS if self.broken else self.cells

    def place(self, at_s: float) -> float:
        """The position of a time, in cells from the left, limited to the scale."""
        return min(max(at_s / self.end_s * self.scale_cells, 0.0), float(self.scale_cells))

    def cell(self, at_s: float) -> int:
        """The cell of a time; on a broken axis, times beyond the scale are in the break."""
        if self.broken and at_s > self.end_s:
            return self.cells - _BREAK_CELLS
        return min(int(self.place(at_s)), self.cells - 1)

    @property
    def deadline_cell(self) -> int | None:
        """The cell of the run's deadline."""
        if self.deadline_s is None:
            return None
        return self.cells - 1 if self.broken else self.cell(self.deadline_s)

    def labels(self) -> str:
        """The line of labels above the axis; each begins at the cell of its time."""
        line = ""
        for at_s in self.ticks():
            line = line.ljust(self.cell(at_s)) + label_of(at_s)
        return line.ljust(self.cells)

    def tick_cells(self) -> set[int]:
        """The cells of the labelled times."""
        return {self.cell(at_s) for at_s in self.ticks()}

    def ticks(self) -> list[float]:
        """The labelled times: multiples of the smallest step at which the labels fit."""
        for step_s in _tick_steps_s(self.end_s):
            step_cells = step_s / self.end_s * self.scale_cells
            if step_cells < _MIN_STEP_CELLS:
                continue
            ticks = [number * step_s for number in range(math.ceil(self.end_s / step_s))]
            if max(len(label_of(at_s)) for at_s in ticks) + _TICK_GAP <= step_cells:
                # The last label may not fit before the end.
                return [at_s for at_s in ticks if self._fits(at_s)]
        return [0.0]

    def _fits(self, at_s: float) -> bool:
        return self.cell(at_s) + len(label_of(at_s)) <= self.scale_cells


def axis_for(*, work_end_s: float, deadline_s: float | None, cells: int) -> Axis:
    """An axis that shows both a run's work and its deadline."""
    assert cells > 2 * _BREAK_CELLS
    work_s = max(work_end_s, 0.001)
    if deadline_s is not None and deadline_s > BREAK_AT * work_s:
        return Axis(cells, work_s * _MARGIN, deadline_s, broken=True)
    if deadline_s is not None and deadline_s >= work_s:
        return Axis(cells, deadline_s, deadline_s)
    return Axis(cells, work_s * _MARGIN, deadline_s)


def _tick_steps_s(end_s: float) -> Iterator[float]:
    unit_s = 0.001
    while unit_s < 1:
        yield from (unit_s, 2 * unit_s, 5 * unit_s)
        unit_s *= 10
    yield from _TICK_STEPS_S
    day_s = 86400.0
    while day_s < end_s:
        day_s *= 2
        yield day_s


def label_of(at_s: float) -> str:
    """A time as a label, without a fraction of .0."""
    if at_s == 0:
        return "0"
    return shown(at_s).replace(".0 ", " ")

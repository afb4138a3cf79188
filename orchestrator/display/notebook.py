"""Progress of runs in a Jupyter notebook: one line of text in a cell's output, redrawn in place."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import Any, Protocol

from orchestrator.display.progress import RunProgress
from orchestrator.display.run_text import counted
from orchestrator.durations import shown
from orchestrator.events import Event, RunFinished, RunStarted

REDRAW_S = 0.5
"""Interval at which the line is redrawn while a run goes on, in seconds."""


class Line(Protocol):
    """A line in a cell's output that can be changed."""

    def update(self, text: str) -> None:
        """Show another text in its place."""
        ...


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    return getattr(_shell(), "kernel", None) is not None


def current_cell() -> int:
    """The number of the cell that is executed."""
    return int(getattr(_shell(), "execution_count", 0))


def new_line(text: str) -> Line:
    """Show a line of text in the output of the current cell."""
    return _NotebookLine(text)


class NotebookProgress:
    """Shows what runs do: a line for each cell, of the run that began last.

    Args:
        show: makes a new line.
        cell: the number of the current cell.
        clock: seconds, for the time of running runs.
    """

    def __init__(
        self,
        *,
        show: Callable[[str], Line] = new_line,
        cell: Callable[[], int] = current_cell,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._show = show
        self._cell = cell
        self._clock = clock
        self._cells: dict[int, _CellRuns] = {}
        self._runs: dict[str, _CellRuns] = {}

    def say(self, text: str) -> None:
        """Show a text in the current cell's line, until a run begins there."""
        self._current().draw(text)

    def on_event(self, event: Event) -> None:
        """Show an event of a run."""
        if isinstance(event, RunStarted):
            self._runs[event.run_id] = cell = self._current()
            cell.began(event.run_id, self._clock())
            self._redraw_later(cell)
        cell_of_run = self._runs.get(event.run_id)
        if cell_of_run is None:
            return
        cell_of_run.update(event)
        if isinstance(event, RunFinished):
            del self._runs[event.run_id]
        if isinstance(event, RunStarted | RunFinished):
            cell_of_run.draw(cell_of_run.text(self._clock()))

    def _current(self) -> _CellRuns:
        number = self._cell()
        if number not in self._cells:
            self._cells = {at: cell for at, cell in self._cells.items() if cell.running}
            self._cells[number] = _CellRuns(self._show)
        return self._cells[number]

    def _redraw_later(self, cell: _CellRuns) -> None:
        if cell.is_redrawn:
            return
        cell.is_redrawn = True
        loop = asyncio.get_running_loop()

        def redraw() -> None:
            cell.is_redrawn = bool(cell.running)
            if cell.running:
                cell.draw(cell.text(self._clock()))
                loop.call_later(REDRAW_S, redraw)

        loop.call_later(REDRAW_S, redraw)


class _CellRuns:
    """The runs that began in one cell, and the line that shows them."""

    def __init__(self, show: Callable[[str], Line]) -> None:
        self._show = show
        self._line: Line | None = None
        self._text = ""
        self.running: dict[str, tuple[RunProgress, float]] = {}
        self.is_redrawn = False
        self._ended: list[str] = []
        self._last = ""

    def began(self, run_id: str, at_s: float) -> None:
        self.running[run_id] = RunProgress(), at_s

    def update(self, event: Event) -> None:
        progress, _ = self.running[event.run_id]
        progress.update(event)
        if isinstance(event, RunFinished):
            del self.running[event.run_id]
            self._ended.append(event.status)
            of = "" if progress.deadline_s is None else f" of {shown(progress.deadline_s)}"
            failed = "" if event.error_type is None else f" ({event.error_type})"
            took = f"{shown(event.elapsed_s)}{of}"
            self._last = f"{progress.flow}: {event.status}{failed} in {took}; "
            self._last += f"{counted(progress.num_done, 'call')}, {progress.output_tokens:,} tokens"

    def text(self, now_s: float) -> str:
        """The state of the runs in one line."""
        ended = [f"{self._ended.count(status)} {status}" for status in dict.fromkeys(self._ended)]
        if not self.running:
            if len(self._ended) == 1:
                return self._last
            return f"{counted(len(self._ended), 'run')}: {', '.join(ended)}; last {self._last}"
        progress, began_s = list(self.running.values())[-1]
        since_s = now_s - began_s
        others = [f"{len(self.running)} running"] if len(self.running) > 1 else []
        prefix = f"runs: {', '.join([*others, *ended])}; " if others or ended else ""
        return (
            f"{prefix}{progress.flow}: {progress.time_line(since_s)}; "
            f"{progress.stage_line(since_s)}; {progress.calls_line()}"
        )

    def draw(self, text: str) -> None:
        if text == self._text:
            return
        self._text = text
        if self._line is None:
            self._line = self._show(text)
        else:
            self._line.update(text)


class _NotebookLine:
    """A line shown by IPython, as plain text: nothing in it is read as HTML."""

    def __init__(self, text: str) -> None:
        display = sys.modules["IPython"].display.display
        self._handle = display({"text/plain": text}, raw=True, display_id=True)

    def update(self, text: str) -> None:
        self._handle.update({"text/plain": text}, raw=True)


def _shell() -> Any:
    """IPython's shell; None where IPython is not running."""
    get_ipython = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if get_ipython is None else get_ipython()

"""Displays the progress of a run while it is executed, from its events."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

from rich.console import Group, RenderableType

from cli.terminal.output import say, stderr_console
from orchestrator.display.progress import RunProgress
from orchestrator.events import (
    CallFinished,
    CallStarted,
    Event,
    RunStarted,
)

if TYPE_CHECKING:
    from rich.status import Status

_PLAIN_EVERY_S = 5.0
_BAR_CELLS = 24


class PlainDisplay:
    """Prints progress lines: at each new stage, and otherwise every few seconds as calls end."""

    def __init__(
        self, progress: RunProgress, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._progress = progress
        self._clock = clock
        self._began_s = clock()
        self._printed_s = -_PLAIN_EVERY_S
        self._stage = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def on_event(self, event: Event) -> None:
        """Update the state with an event, and print a line if one is due."""
        self._progress.update(event)
        if isinstance(event, RunStarted):
            self._began_s = self._clock()
            say(f"run {event.run_id} began")
        if not isinstance(event, CallStarted | CallFinished):
            return
        now_s = self._clock() - self._began_s
        if self._progress.stage == self._stage and now_s - self._printed_s < _PLAIN_EVERY_S:
            return
        self._stage, self._printed_s = self._progress.stage, now_s
        parts = (self._progress.time_line(now_s), self._progress.stage_line(now_s))
        say("; ".join([*parts, self._progress.calls_line()]))


class LiveDisplay:
    """Redraws the progress in place on a terminal."""

    def __init__(
        self, progress: RunProgress, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        from rich.live import Live
        from rich.spinner import Spinner

        self._progress = progress
        self._clock = clock
        self._began_s = clock()
        self._spinner = Spinner("dots", style="cyan")
        self._live = Live(
            console=stderr_console(),
            get_renderable=self._render,
            refresh_per_second=8,
            transient=True,
        )

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def on_event(self, event: Event) -> None:
        """Update the state with an event; the next refresh shows it."""
        self._progress.update(event)
        if isinstance(event, RunStarted):
            self._began_s = self._clock()

    def _render(self) -> RenderableType:
        return live_view(self._progress, self._clock() - self._began_s, spinner=self._spinner)


def live_view(progress: RunProgress, now_s: float, *, spinner: RenderableType) -> RenderableType:
    """Three lines: time against the deadline, current stage, calls."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    is_late = progress.deadline_s is not None and now_s > progress.deadline_s
    head = Table.grid(padding=(0, 1))
    head.add_column(no_wrap=True)
    head.add_column(no_wrap=True)
    row: list[RenderableType] = [spinner, Text(progress.flow, style="bold")]
    if progress.deadline_s is not None:
        total_s, style = progress.deadline_s, "red" if is_late else "cyan"
        head.add_column(max_width=_BAR_CELLS)  # rich shrinks it to what the other columns leave
        row.append(
            ProgressBar(
                total=total_s,
                completed=min(now_s, total_s),
                complete_style=style,
                finished_style=style,
            )
        )
    head.add_column(no_wrap=True)
    head.add_row(*row, Text(progress.time_line(now_s), style="red" if is_late else ""))
    body = Table.grid(padding=(0, 1))
    body.add_row(" ", Text(progress.stage_line(now_s)))
    body.add_row(" ", Text(f"calls: {progress.calls_line()}", style="dim"))
    return Group(head, body)


def display_for(progress: RunProgress, *, verbose: bool) -> PlainDisplay | LiveDisplay:
    """The display for stderr: live on a terminal, lines elsewhere and between an engine's log."""
    if stderr_console().is_terminal and not verbose:
        return LiveDisplay(progress)
    return PlainDisplay(progress)


class Activity:
    """Shows on stderr that something takes a while: a spinner on a terminal, otherwise one line."""

    def __init__(self, message: str, *, verbose: bool = False) -> None:
        self._status: Status | None = None
        if stderr_console().is_terminal and not verbose:
            from rich.status import Status
            from rich.text import Text

            self._status = Status(Text(message), console=stderr_console())
        else:
            say(message)

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def update(self, message: str) -> None:
        """Change the spinner's text; without a terminal nothing more is printed."""
        if self._status is not None:
            from rich.text import Text

            self._status.update(Text(message))

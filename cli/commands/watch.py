"""`orchestrate watch`: the progress of all runs in a store, or of one run."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options
from cli.terminal.output import is_plain_ascii, print_line, stdout_console, width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console, RenderableType
    from rich.live import Live
    from rich.text import Text

    from cli.reading.history import History
    from cli.render.overview import RunSummary
    from store.records import RunRecord
    from store.session import Store

EPILOG = (
    "Example: orchestrate watch\n\n"
    "One run, until it has ended: orchestrate watch 3f2a\n\n"
    "The present state, for a script: orchestrate watch --once\n\n"
    "If the output is not a terminal, a line is printed for each change."
)
_EVERY_S = 0.5
_NO_RUNS = "no runs yet: try `orchestrate run`"


def watch(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run's id, or the beginning of it. Default: all running runs, then the latest.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Maximum number of ended runs to list.")
    ] = 10,
    once: Annotated[bool, typer.Option("--once", help="Show the present state, and exit.")] = False,
    store: options.Store = None,
) -> None:
    """Watch runs: their time against their deadlines, their steps and calls."""
    from cli.terminal.signals import run_until_dismissed
    from orchestrator.settings import read_settings

    url = read_settings(store=store).store
    run_until_dismissed(
        _watch_run(url, run, once=once) if run else _watch_all(url, limit, once=once)
    )


async def _watch_run(url: str, prefix: str, *, once: bool) -> None:
    """Watch one run until it has ended."""
    from cli.commands.logs import event_printer
    from cli.reading.following import follow

    console = stdout_console()
    if once:
        await follow(url, prefix, lambda history: _print(console, history), once=True)
    elif not _can_redraw(console):
        await follow(url, prefix, event_printer())
    else:
        with _live(console) as live:
            await follow(url, prefix, lambda history: _redraw(live, _lines(console, history)))


async def _watch_all(url: str, limit: int, *, once: bool) -> None:
    """Watch the runs of a store until a signal ends the command."""
    import asyncio

    from cli.reading.store_reader import store_with

    console = stdout_console()
    summaries: dict[str, RunSummary] = {}
    async with await store_with(url, None) as store:
        if once:
            shown = await read_summaries(store, limit, summaries)
            console.print(_overview(console, shown) if shown else _NO_RUNS)
        elif not _can_redraw(console):
            print_changes = change_printer(console)
            while True:
                print_changes(await read_summaries(store, limit, summaries))
                await asyncio.sleep(_EVERY_S)
        else:
            with _live(console) as live:
                while True:
                    shown = await read_summaries(store, limit, summaries)
                    _redraw(live, [_overview(console, shown) if shown else _NO_RUNS])
                    await asyncio.sleep(_EVERY_S)


async def read_summaries(
    store: Store, limit: int, cache: dict[str, RunSummary]
) -> list[RunSummary]:
    """Summaries of the running runs, then of the latest others, newest first.

    Args:
        limit: maximum number of the others.
        cache: run id -> latest summary; updated here, so that ended runs are read only once.
    """
    from cli.render.overview import summarise
    from orchestrator.durability.liveness import ORPHANED
    from store.records import Status

    listed = await _list_runs(store, limit)
    if any(shown == ORPHANED and not _is_cached(run, shown, cache) for run, shown in listed):
        # It may have ended after its record was read: the second read decides.
        listed = await _list_runs(store, limit)
    for run, shown in listed:
        if shown == Status.RUNNING or not _is_cached(run, shown, cache):
            async with store.reading() as tx:
                calls = await tx.calls.of_run(run.id)
                steps = await tx.journal.of_run(run.id)
            cache[run.id] = summarise(run, shown, calls, steps)
    return [cache[run.id] for run, _ in listed]


def change_printer(console: Console) -> Callable[[Sequence[RunSummary]], None]:
    """A function that prints a line for each run that changed since its last line."""
    from rich.text import Text

    from cli.render.overview import plain_line

    printed: dict[str, tuple[object, ...]] = {}  # run id -> state at its last line

    def print_changes(summaries: Sequence[RunSummary]) -> None:
        for summary in summaries:
            if printed.get(summary.run.id) != summary.state:
                printed[summary.run.id] = summary.state
                print_line(console, Text(plain_line(summary, now=datetime.now(UTC))))

    return print_changes


async def _list_runs(store: Store, limit: int) -> list[tuple[RunRecord, str]]:
    """The runs to watch, with the statuses to show."""
    from orchestrator.durability.liveness import status_shown
    from store.records import Status

    async with store.reading() as tx:
        running = await tx.runs.newest(status=Status.RUNNING)
        live = [(run, status_shown(run)) for run in running]
        live = [(run, shown) for run, shown in live if shown == Status.RUNNING]
        newest = await tx.runs.newest(limit=limit + len(live))
    ids = {run.id for run, _ in live}
    others = [(run, status_shown(run)) for run in newest if run.id not in ids]
    return [*live, *others[:limit]]


def _is_cached(run: RunRecord, shown: str, cache: dict[str, RunSummary]) -> bool:
    cached = cache.get(run.id)
    return cached is not None and (cached.status, cached.run.attempts) == (shown, run.attempts)


def _can_redraw(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def _live(console: Console) -> Live:
    from rich.live import Live

    return Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)


def _redraw(live: Live, parts: Sequence[RenderableType]) -> None:
    from rich.console import Group

    live.update(Group(*parts), refresh=True)


def _overview(console: Console, summaries: Sequence[RunSummary]) -> RenderableType:
    from cli.render.overview import overview

    ascii_only = is_plain_ascii(console)
    return overview(
        summaries, now=datetime.now(UTC), width=width_of(console), ascii_only=ascii_only
    )


def _print(console: Console, history: History) -> None:
    for line in _lines(console, history):
        print_line(console, line)


def _lines(console: Console, history: History) -> list[Text]:
    from cli.render.run_view import run_lines

    ascii_only = is_plain_ascii(console)
    return run_lines(history, now=datetime.now(UTC), width=width_of(console), ascii_only=ascii_only)

"""`orchestrate watch`: runs as they go on, or one of them as it grows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options
from cli.terminal.output import is_plain_ascii, print_line, results, width_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import datetime

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
    "As it is now, for a script: orchestrate watch --once\n\n"
    "Where the output is no terminal, a line is printed whenever something has changed."
)
_EVERY_S = 0.5
_NOTHING = "no runs yet: try `orchestrate run`"


def watch(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run's id, or how it begins. Default: all that go on, then the latest others.",
            show_default=False,
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=0, help="Most runs to list that have ended.")
    ] = 10,
    once: Annotated[bool, typer.Option("--once", help="Show it as it is now, and exit.")] = False,
    store: options.Store = None,
) -> None:
    """Watch runs go on: their time against their deadlines, their steps and calls."""
    from cli.terminal.signals import run_until_dismissed
    from orchestrator.settings import read_settings

    url = read_settings(store=store).store
    run_until_dismissed(_one(url, run, once=once) if run else _all(url, limit, once=once))


async def _one(url: str, prefix: str, *, once: bool) -> None:
    """Watch one run until it has ended."""
    from cli.commands.logs import teller
    from cli.reading.following import follow

    console = results()
    if once:
        await follow(url, prefix, lambda history: _print(console, history), once=True)
    elif not _can_redraw(console):
        await follow(url, prefix, teller())
    else:
        with _live(console) as live:
            await follow(url, prefix, lambda history: _redraw(live, _lines(console, history)))


async def _all(url: str, limit: int, *, once: bool) -> None:
    """Watch the runs of a store for as long as anybody wants to."""
    import asyncio

    from cli.reading.store_reader import store_with

    console = results()
    known: dict[str, RunSummary] = {}
    async with await store_with(url, None) as store:
        if once:
            found = await glances(store, limit, known)
            console.print(_frame(console, found) if found else _NOTHING)
        elif not _can_redraw(console):
            tell = changes(console)
            while True:
                tell(await glances(store, limit, known))
                await asyncio.sleep(_EVERY_S)
        else:
            with _live(console) as live:
                while True:
                    found = await glances(store, limit, known)
                    _redraw(live, [_frame(console, found) if found else _NOTHING])
                    await asyncio.sleep(_EVERY_S)


async def glances(store: Store, limit: int, known: dict[str, RunSummary]) -> list[RunSummary]:
    """The runs that go on, then the latest others, newest first.

    Args:
        limit: most of the others.
        known: by id, what was seen last: a run that has ended is read only once.
    """
    from cli.render.overview import summarise
    from orchestrator.durability.liveness import ORPHANED
    from store.records import Status

    found = await _listed(store, limit)
    if any(shown == ORPHANED and not _is_known(run, shown, known) for run, shown in found):
        found = await _listed(store, limit)  # or it ended just after it was read
    for run, shown in found:
        if shown == Status.RUNNING or not _is_known(run, shown, known):
            async with store.reading() as tx:
                calls = await tx.calls.of_run(run.id)
                steps = await tx.journal.of_run(run.id)
            known[run.id] = summarise(run, shown, calls, steps)
    return [known[run.id] for run, _ in found]


def changes(console: Console) -> Callable[[Sequence[RunSummary]], None]:
    """What prints a line for each run that is not as it was when it was last told of."""
    from rich.text import Text

    from cli.render.overview import plain_line

    before: dict[str, tuple[object, ...]] = {}

    def tell(found: Sequence[RunSummary]) -> None:
        for one in found:
            if before.get(one.run.id) != one.state:
                before[one.run.id] = one.state
                print_line(console, Text(plain_line(one, now=_now())))

    return tell


async def _listed(store: Store, limit: int) -> list[tuple[RunRecord, str]]:
    """The runs to watch, with the statuses to show."""
    from orchestrator.durability.liveness import status_shown
    from store.records import Status

    async with store.reading() as tx:
        running = await tx.runs.newest(status=Status.RUNNING)
        going_on = [(run, status_shown(run)) for run in running]
        going_on = [(run, shown) for run, shown in going_on if shown == Status.RUNNING]
        newest = await tx.runs.newest(limit=limit + len(going_on))
    ids = {run.id for run, _ in going_on}
    others = [(run, status_shown(run)) for run in newest if run.id not in ids]
    return [*going_on, *others[:limit]]


def _is_known(run: RunRecord, shown: str, known: dict[str, RunSummary]) -> bool:
    seen = known.get(run.id)
    return seen is not None and (seen.status, seen.run.attempts) == (shown, run.attempts)


def _can_redraw(console: Console) -> bool:
    return console.is_terminal and not console.is_dumb_terminal


def _live(console: Console) -> Live:
    from rich.live import Live

    return Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False)


def _redraw(live: Live, parts: Sequence[RenderableType]) -> None:
    from rich.console import Group

    live.update(Group(*parts), refresh=True)


def _frame(console: Console, found: Sequence[RunSummary]) -> RenderableType:
    from cli.render.overview import overview

    ascii_only = is_plain_ascii(console)
    return overview(found, now=_now(), width=width_of(console), ascii_only=ascii_only)


def _print(console: Console, history: History) -> None:
    for line in _lines(console, history):
        print_line(console, line)


def _lines(console: Console, history: History) -> list[Text]:
    from cli.render.run_view import picture

    ascii_only = is_plain_ascii(console)
    return picture(history, now=_now(), width=width_of(console), ascii_only=ascii_only)


def _now() -> datetime:
    from datetime import UTC, datetime

    return datetime.now(UTC)

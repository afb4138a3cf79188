"""`orchestrate ps` and `orchestrate show`: the runs of a store, and one run in detail."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from cli.commands import options
from cli.errors import BadInput
from cli.terminal.output import (
    is_plain_ascii,
    print_json,
    print_line,
    say,
    stdout_console,
    width_of,
)

if TYPE_CHECKING:
    from cli.reading.history import History
    from store.records import RunRecord


class StatusChoice(StrEnum):
    """The statuses by which `ps` can filter."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    ORPHANED = "orphaned"
    QUEUED = "queued"
    DEAD = "dead"


class _Filters(NamedTuple):
    """What the runs to list have in common; None: anything."""

    flow: str | None = None
    status: str | None = None
    user: str | None = None
    tags: Mapping[str, str] | None = None


def ps(
    limit: Annotated[
        int, typer.Option("--limit", "-n", min=1, help="Maximum number of runs to list.")
    ] = 20,
    status: Annotated[
        StatusChoice | None,
        typer.Option(
            help="List only these runs. Orphaned: recorded as running, but the process is gone. "
            "Queued: waiting for a worker. Dead: lost, or failed, too often."
        ),
    ] = None,
    flow: Annotated[
        str | None, typer.Option(metavar="NAME", help="List only runs of the flow with this name.")
    ] = None,
    user: Annotated[
        str | None, typer.Option(metavar="NAME", help="List only runs of this user.")
    ] = None,
    tag: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TEXT", help="List only runs with this tag; with each, if repeated."
        ),
    ] = None,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """List runs, newest first."""
    import asyncio

    from orchestrator.settings import read_settings

    url = read_settings(store=store).store
    filters = _Filters(
        flow, None if status is None else status.value, user, _tags(tag or ()) or None
    )
    runs = asyncio.run(_newest(url, limit, filters))
    now = datetime.now(UTC)
    if json:
        from cli.render.describe import run_document

        print_json({"runs": [run_document(run, shown, now=now) for run, shown in runs]})
    elif not runs:
        say("no such runs" if filters != _Filters() else "no runs yet: try `orchestrate run`")
    else:
        from cli.render.describe import below_table, run_table

        console = stdout_console()
        width = width_of(console)
        ascii_only = is_plain_ascii(console)
        table = run_table(runs, now=now, width=width, ascii_only=ascii_only)
        console.print(table, width=width)
        for line in below_table(runs, width=width):
            print_line(console, line)


def show(
    run: Annotated[
        str | None,
        typer.Argument(help="A run's id, or the beginning of it. Default: the newest run."),
    ] = None,
    calls: Annotated[bool, typer.Option("--calls", help="Draw calls as well as stages.")] = (False),
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Show a run: its stages on a time axis, with their sub-deadlines."""
    import asyncio

    from cli.reading.store_reader import history_of
    from orchestrator.settings import read_settings

    url = read_settings(store=store).store
    history = asyncio.run(history_of(url, run))
    if json:
        from cli.render.describe import document_of

        print_json(document_of(history, now=datetime.now(UTC)))
    else:
        _draw(history, with_calls=calls)


def _draw(history: History, *, with_calls: bool) -> None:
    from cli.render.run_view import run_lines

    console = stdout_console()
    lines = run_lines(
        history,
        now=datetime.now(UTC),
        width=width_of(console),
        ascii_only=is_plain_ascii(console),
        with_calls=with_calls,
    )
    for line in lines:
        print_line(console, line)


def _tags(given: Sequence[str]) -> dict[str, str]:
    """Tags by name; raises BadInput for one without a name, and for two texts of one tag."""
    tags: dict[str, str] = {}
    for each in given:
        name, equals, text = each.partition("=")
        if not equals:
            raise BadInput(f"--tag {each}: a tag is given as NAME=TEXT")
        if tags.setdefault(name, text) != text:
            raise BadInput(f"--tag {each}: no run has two texts for the tag {name}")
    return tags


async def _newest(url: str, limit: int, filters: _Filters) -> list[tuple[RunRecord, str]]:
    """The newest runs with the statuses to show; empty if there is no store yet."""
    from cli.reading.store_reader import existing_store
    from orchestrator.runtime.run_control import newest_runs

    store = await existing_store(url)
    if store is None:
        return []
    async with store:
        return await newest_runs(store, limit=limit, **filters._asdict())

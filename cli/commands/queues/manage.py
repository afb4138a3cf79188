"""`orchestrate queue`: what waits, and limits, pauses, dead runs and schedules of queues."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from cli.commands import options

if TYPE_CHECKING:
    from store.session import Store
    from store.unit_of_work import Transaction

T = TypeVar("T")

Name = Annotated[str, typer.Argument(metavar="QUEUE", help="A queue's name.")]
_Limit = Annotated[
    int | None,
    typer.Option("--max-running", metavar="N", help="Runs in progress at once; 0: any number."),
]
_UserLimit = Annotated[
    int | None,
    typer.Option("--max-per-user", metavar="N", help="The same for each user; 0: any number."),
]

app = typer.Typer(
    help="Look at queues and manage them: limits, pauses, dead runs, schedules.",
    no_args_is_help=True,
    rich_markup_mode="rich",
    epilog="Example: orchestrate queue list",
)


@app.command("list", epilog="Example: orchestrate queue list --json")
def list_queues(store: options.Store = None, json: options.Json = False) -> None:
    """List all queues: what waits, runs and is dead, and their limits."""
    from cli.work.queues.listing import show_queues

    _with_store(store, lambda opened: show_queues(opened, as_json=json))


@app.command("waiting", epilog="Example: orchestrate queue waiting nightly -n 5")
def waiting(
    queue: Name = "default",
    limit: Annotated[int, typer.Option("--limit", "-n", min=1)] = 20,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """List the runs that wait in a queue, in the order in which workers take them."""
    from cli.work.queues.listing import show_waiting

    _with_store(store, lambda opened: show_waiting(opened, queue, limit=limit, as_json=json))


@app.command("pause", epilog="Example: orchestrate queue pause nightly")
def pause(queue: Name, store: options.Store = None) -> None:
    """Let workers take nothing from a queue; what is in progress goes on."""
    _change(store, queue, "is paused: nothing is taken from it", is_paused=True)


@app.command("drain", epilog="Example: orchestrate queue drain nightly")
def drain(queue: Name, store: options.Store = None) -> None:
    """Let a queue take no more runs; those that wait are still executed."""
    _change(store, queue, "is drained: nothing can be submitted to it", is_draining=True)


@app.command("resume", epilog="Example: orchestrate queue resume nightly")
def resume(queue: Name, store: options.Store = None) -> None:
    """End a queue's pause, and open it after it was drained."""
    _change(store, queue, "is open", is_paused=False, is_draining=False)


@app.command(
    "limit", epilog="Example: orchestrate queue limit nightly --max-running 8 --max-per-user 2"
)
def limit(
    queue: Name,
    max_running: _Limit = None,
    max_per_user: _UserLimit = None,
    store: options.Store = None,
) -> None:
    """Limit how many runs of a queue are in progress at once, in all workers together."""
    from cli.errors import BadInput

    given = {"max_running": max_running, "max_running_of_user": max_per_user}
    values = {name: n or None for name, n in given.items() if n is not None}
    if not values or any(n is not None and n < 0 for n in given.values()):
        raise BadInput("give --max-running or --max-per-user, each at least 0")
    _change(store, queue, "has these limits from now on", **values)


@app.command("requeue", epilog="Example: orchestrate queue requeue 3f2a --deadline 60s")
def requeue(
    run: Annotated[str, typer.Argument(help="A run's id, or the beginning of it.")],
    deadline: Annotated[
        str | None,
        typer.Option("--deadline", metavar="TIME", help="A new deadline, counted from now."),
    ] = None,
    store: options.Store = None,
) -> None:
    """Queue a dead, failed or cancelled run again; its recorded outcomes are kept."""
    from cli.terminal.output import say
    from orchestrator.durations import seconds_of

    allowed_s = None if deadline is None else seconds_of(deadline)

    async def work(tx: Transaction) -> str:
        from datetime import UTC, datetime

        found = await tx.runs.find(run)
        now = datetime.now(UTC)
        again = await tx.waiting.requeue(found.id, wall=now, allowed_s=allowed_s)
        return f"run {again.id} waits in queue {again.queue}"

    say(_write(store, work))


@app.command("schedules", epilog="Example: orchestrate queue schedules")
def schedules(store: options.Store = None, json: options.Json = False) -> None:
    """List the schedules, and when each is due next."""
    from cli.work.queues.listing import show_schedules

    _with_store(store, lambda opened: show_schedules(opened, as_json=json))


@app.command("unschedule", epilog="Example: orchestrate queue unschedule tides")
def unschedule(
    schedule: Annotated[str, typer.Argument(help="A schedule's name.")],
    store: options.Store = None,
) -> None:
    """Remove a schedule; the runs that it has submitted stay."""
    from cli.terminal.output import say

    async def work(tx: Transaction) -> str:
        await tx.schedules.remove(schedule)
        return f"schedule {schedule} is removed"

    say(_write(store, work))


def _change(store: str | None, queue: str, outcome: str, **values: int | bool | None) -> None:
    from cli.terminal.output import say
    from orchestrator.execution.queue_options import check_queue_name

    check_queue_name(queue)

    async def work(tx: Transaction) -> str:
        await tx.waiting.change(queue, **values)
        return f"queue {queue} {outcome}"

    say(_write(store, work))


def _write(store: str | None, work: Callable[[Transaction], Awaitable[str]]) -> str:
    async def write(opened: Store) -> str:
        async with opened.transaction() as tx:
            return await work(tx)

    return _with_store(store, write)


def _with_store(url: str | None, work: Callable[[Store], Awaitable[T]]) -> T:
    import asyncio

    from orchestrator.settings import read_settings
    from store.session import open_store

    async def run() -> T:
        async with await open_store(read_settings(store=url).store) as opened:
            return await work(opened)

    return asyncio.run(run())

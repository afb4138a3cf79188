"""`orchestrate gc`: remove runs that ended long ago, and what only they used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from cli.commands import options

if TYPE_CHECKING:
    from collections.abc import Callable
    from datetime import datetime

    from store.retention import Removal
    from store.session import Store

EPILOG = (
    "Example: orchestrate gc --keep 30d\n\n"
    "See first what would go: orchestrate gc --keep 7d --dry-run\n\n"
    "Runs that are recorded as running stay, orphaned ones as well: resume them first. What was "
    "learned stays. Others wait while it works, so choose a quiet time for a large store."
)

_TURN_S = 0.1  # between two transactions, for others who wait


def gc(
    keep: Annotated[
        str,
        typer.Option(
            "--keep", metavar="TIME", help="Keep runs that ended within this time: 30d, 12h."
        ),
    ] = "30d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Change nothing: only say what would go.")
    ] = False,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Remove runs that ended long ago, and give their room back."""
    from cli.errors import RemovalInterrupted
    from cli.terminal.output import print_json, say
    from cli.terminal.signals import run_until_interrupted
    from orchestrator.durations import seconds_of
    from orchestrator.settings import read_settings

    keep_s = seconds_of(keep)
    url = read_settings(store=store).store
    removed: list[Removal] = []
    done = run_until_interrupted(
        _collect(url, _ago(keep_s), dry_run=dry_run, on_removed=removed.append),
        interrupted=lambda number: RemovalInterrupted(number, bool(removed)),
    )
    if done is None:
        removal, before, after = _nothing(), None, None
    else:
        removal, before, after = done
    _warn_of_damage(removal)
    if json:
        print_json(_document(removal, keep_s, before, after, dry_run=dry_run))
    elif done is None:
        say("no runs yet: nothing to remove")
    else:
        _print(removal, before, after, dry_run=dry_run)


async def _collect(
    url: str, ended_before: datetime, *, dry_run: bool, on_removed: Callable[[Removal], None]
) -> tuple[Removal, int | None, int | None] | None:
    """Remove, and make the file smaller; None where there is no store.

    Returns:
        what was removed, and the file's bytes before and after; None for a server.
    """
    from cli.reading.store_reader import existing_store
    from cli.terminal.output import warn
    from cli.terminal.progress import Activity
    from store.errors import StoreFull, StoreLocked
    from store.space import reclaim, stored_bytes

    before = stored_bytes(url)
    opened = await existing_store(url)
    if opened is None:
        return None
    with Activity("looking for what is in use") as activity:
        removal = await _remove(
            opened, ended_before, dry_run=dry_run, on_removed=on_removed, progress=activity.update
        )
        if dry_run:
            return removal, before, before
        activity.update("making the file smaller")
        try:
            await reclaim(url)
        except (StoreFull, StoreLocked) as error:
            # What was removed is removed, and its room will be used again.
            warn(f"the file keeps its size: {error}")
    return removal, before, stored_bytes(url)


async def _remove(
    opened: Store,
    ended_before: datetime,
    *,
    dry_run: bool,
    on_removed: Callable[[Removal], None],
    progress: Callable[[str], None],
) -> Removal:
    """Remove, in as many transactions as it takes; `on_removed` is told of each."""
    import asyncio
    from datetime import UTC, datetime

    async with opened:
        total = None
        while total is None or not total.is_complete:
            async with opened.transaction() as tx:
                removal = await tx.retention.remove(
                    ended_before=ended_before,
                    now=datetime.now(UTC),
                    dry_run=dry_run,
                    progress=progress,
                )
            if not dry_run:
                on_removed(removal)
            total = removal if total is None else total.and_then(removal)
            await asyncio.sleep(_TURN_S)
    return total


def _ago(seconds: float) -> datetime:
    """That many seconds before now; the first moment that there is, where it would lie earlier."""
    from datetime import UTC, datetime, timedelta

    try:
        return datetime.now(UTC) - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _nothing() -> Removal:
    from store.retention import Removal

    return Removal(num_runs=0, num_steps=0, num_calls=0, num_payloads=0, payload_bytes=0)


def _warn_of_damage(removal: Removal) -> None:
    from cli.render.describe import counted
    from cli.terminal.output import warn

    if removal.num_damaged:
        warn(
            f"{counted(removal.num_damaged, 'payload')} in use cannot be read: "
            f"{counted(removal.num_spared, 'unused payload')} of which they may consist stay, "
            "until their runs are removed"
        )


def _print(removal: Removal, before: int | None, after: int | None, *, dry_run: bool) -> None:
    from rich.filesize import decimal
    from rich.text import Text

    from cli.render.describe import counted
    from cli.terminal.output import print_line, results

    parts = [
        counted(removal.num_runs, "run"),
        counted(removal.num_steps, "step"),
        counted(removal.num_calls, "call"),
        f"{counted(removal.num_payloads, 'payload')} of {decimal(removal.payload_bytes)}",
    ]
    console = results()
    verb = "would remove" if dry_run else "removed"
    print_line(console, Text(f"{verb} {', '.join(parts)}"))
    if before is not None and after is not None:
        size = decimal(before) if dry_run else f"{decimal(before)} before, {decimal(after)} now"
        print_line(console, Text(f"the file takes {size}"))


def _document(
    removal: Removal, keep_s: float, before: int | None, after: int | None, *, dry_run: bool
) -> dict[str, object]:
    """The same for programs; bytes are None where the store is no file."""
    return {
        "dry_run": dry_run,
        "keep_s": keep_s,
        "runs": removal.num_runs,
        "steps": removal.num_steps,
        "calls": removal.num_calls,
        "payloads": removal.num_payloads,
        "payload_bytes": removal.payload_bytes,
        "damaged_payloads": removal.num_damaged,
        "spared_payloads": removal.num_spared,
        "file_bytes_before": before,
        "file_bytes_after": after,
    }

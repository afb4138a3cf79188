"""`orchestrate gc`: remove runs that ended long ago, and payloads that only they used."""

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
    "See first what would be removed: orchestrate gc --keep 7d --dry-run\n\n"
    "Runs that are recorded as running are kept, orphaned ones included: resume them first. "
    "Learned patterns are kept. Other processes must wait for their writes meanwhile, so clean "
    "up a large store when it is little used."
)

_PAUSE_S = 0.1  # between two transactions, so that other processes can write


def gc(
    keep: Annotated[
        str,
        typer.Option(
            "--keep", metavar="TIME", help="Keep runs that ended within this time: 30d, 12h."
        ),
    ] = "30d",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only report what would be removed.")
    ] = False,
    store: options.Store = None,
    json: options.Json = False,
) -> None:
    """Remove runs that ended long ago, and free their disk space."""
    from cli.errors import RemovalInterrupted
    from cli.terminal.output import print_json, say
    from cli.terminal.signals import run_until_interrupted
    from orchestrator.durations import seconds_of
    from orchestrator.settings import read_settings

    keep_s = seconds_of(keep)
    url = read_settings(store=store).store
    removals: list[Removal] = []
    outcome = run_until_interrupted(
        _collect(url, _time_before_now(keep_s), dry_run=dry_run, on_removed=removals.append),
        interrupted=lambda number: RemovalInterrupted(number, bool(removals)),
    )
    if outcome is None:
        removal, before, after = _empty_removal(), None, None
    else:
        removal, before, after = outcome
    _warn_of_damage(removal)
    if json:
        print_json(_document(removal, keep_s, before, after, dry_run=dry_run))
    elif outcome is None:
        say("no runs yet: nothing to remove")
    else:
        _print(removal, before, after, dry_run=dry_run)


async def _collect(
    url: str, ended_before: datetime, *, dry_run: bool, on_removed: Callable[[Removal], None]
) -> tuple[Removal, int | None, int | None] | None:
    """Remove runs and payloads, then shrink the store's file.

    Returns:
        the removal, and the file's bytes before and after (None for a database server); None if
        there is no store.
    """
    from cli.reading.store_reader import existing_store
    from cli.terminal.output import warn
    from cli.terminal.progress import Activity
    from store.database.sqlite_file import reclaim, stored_bytes
    from store.errors import StoreFull, StoreLocked

    before = stored_bytes(url)
    store = await existing_store(url)
    if store is None:
        return None
    with Activity("looking for payloads in use") as activity:
        removal = await _remove(
            store, ended_before, dry_run=dry_run, on_removed=on_removed, progress=activity.update
        )
        if dry_run:
            return removal, before, before
        activity.update("shrinking the file")
        try:
            await reclaim(url)
        except (StoreFull, StoreLocked) as error:
            # The removal is committed, and later writes will use the free pages.
            warn(f"the file keeps its size: {error}")
    return removal, before, stored_bytes(url)


async def _remove(
    store: Store,
    ended_before: datetime,
    *,
    dry_run: bool,
    on_removed: Callable[[Removal], None],
    progress: Callable[[str], None],
) -> Removal:
    """Remove in as many transactions as needed; `on_removed` is called after each."""
    import asyncio
    from datetime import UTC, datetime

    async with store:
        total = None
        while total is None or not total.is_complete:
            async with store.transaction() as tx:
                removal = await tx.retention.remove(
                    ended_before=ended_before,
                    now=datetime.now(UTC),
                    dry_run=dry_run,
                    progress=progress,
                )
            if not dry_run:
                on_removed(removal)
            total = removal if total is None else total.and_then(removal)
            await asyncio.sleep(_PAUSE_S)
    return total


def _time_before_now(seconds: float) -> datetime:
    """So many seconds before now; the earliest possible datetime if that would be earlier."""
    from datetime import UTC, datetime, timedelta

    try:
        return datetime.now(UTC) - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _empty_removal() -> Removal:
    from store.retention import Removal

    return Removal(num_runs=0, num_steps=0, num_calls=0, num_payloads=0, payload_bytes=0)


def _warn_of_damage(removal: Removal) -> None:
    from cli.terminal.output import warn
    from orchestrator.display.run_text import counted

    if removal.num_damaged:
        warn(
            f"{counted(removal.num_damaged, 'payload')} in use cannot be read; "
            f"{counted(removal.num_spared, 'unused payload')} that may be parts of them are kept "
            "until their runs are removed"
        )


def _print(removal: Removal, before: int | None, after: int | None, *, dry_run: bool) -> None:
    from rich.filesize import decimal
    from rich.text import Text

    from cli.terminal.output import print_line, stdout_console
    from orchestrator.display.run_text import counted

    parts = [
        counted(removal.num_runs, "run"),
        counted(removal.num_steps, "step"),
        counted(removal.num_calls, "call"),
        f"{counted(removal.num_payloads, 'payload')} of {decimal(removal.payload_bytes)}",
    ]
    console = stdout_console()
    verb = "would remove" if dry_run else "removed"
    print_line(console, Text(f"{verb} {', '.join(parts)}"))
    if before is not None and after is not None:
        size = decimal(before) if dry_run else f"{decimal(before)} before, {decimal(after)} now"
        print_line(console, Text(f"the file takes {size}"))


def _document(
    removal: Removal, keep_s: float, before: int | None, after: int | None, *, dry_run: bool
) -> dict[str, object]:
    """The JSON document; the file's bytes are None if the store is on a database server."""
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

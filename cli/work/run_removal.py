"""Removes old runs and unused payloads from a store, in as many transactions as that takes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from store.retention import Removal
from store.session import Store

NOTHING = Removal(num_runs=0, num_steps=0, num_calls=0, num_payloads=0, payload_bytes=0)

_PAUSE_S = 0.1  # between two transactions, so that other processes can write


async def remove_runs(
    store: Store,
    ended_before: datetime,
    *,
    dry_run: bool,
    on_removed: Callable[[], None],
    progress: Callable[[str], None],
) -> Removal:
    """Remove runs that ended before a moment, with what only they used.

    Args:
        on_removed: called after each transaction that removed something.
    """
    total = NOTHING
    while True:
        async with store.transaction() as tx:
            removal = await tx.retention.remove(
                ended_before=ended_before, now=datetime.now(UTC), dry_run=dry_run, progress=progress
            )
        if not dry_run:
            on_removed()
        total = total.and_then(removal)
        await asyncio.sleep(_PAUSE_S)
        if total.is_complete:
            return total


def time_before_now(seconds: float) -> datetime:
    """So many seconds before now; the earliest possible datetime if that would be earlier."""
    try:
        return datetime.now(UTC) - timedelta(seconds=seconds)
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)

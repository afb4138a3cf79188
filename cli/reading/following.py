"""Follow a run as it grows in the store, by polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cli.reading.history import History
from cli.reading.store_reader import read_history, store_with
from orchestrator.durability.liveness import ORPHANED
from store.records import Status

POLL_S = 0.25
"""How often a store is read: the repositories cannot tell what is new since the last time."""


async def follow(
    url: str, prefix: str | None, tell: Callable[[History], None], *, once: bool = False
) -> None:
    """Tell of a run as it is, again and again until it has ended; the newest without a prefix.

    Args:
        once: tell of it as it is now, and leave it at that.
    Raises:
        RunNotFound, RunAmbiguous: no run's id begins like this, or several do.
        BadInput: there are no runs at all.
    """
    run_id = prefix
    is_gone = False
    async with await store_with(url, prefix) as store:
        while True:
            history = await read_history(store, run_id, whole=False)
            run_id = history.run.id
            if history.status == ORPHANED and not is_gone:
                is_gone = True  # or it ended just after it was read: the next look tells
                continue
            is_gone = False
            tell(history)
            if once or history.status != Status.RUNNING:
                return
            await asyncio.sleep(POLL_S)

"""Follows a run in the store by polling."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from cli.reading.history import History
from cli.reading.store_reader import read_history, store_with
from orchestrator.durability.liveness import ORPHANED
from store.records import Status

POLL_S = 0.25
"""Interval between two reads of the run's records, in seconds; each reads all of them."""


async def follow(
    url: str, prefix: str | None, on_history: Callable[[History], None], *, once: bool = False
) -> None:
    """Read a run repeatedly until it has ended, and pass on each state.

    Args:
        prefix: how the run's id begins; None: the newest run.
        on_history: called with the run's records after each read.
        once: read only once.
    Raises:
        RunNotFound, RunAmbiguous: no run's id begins like this, or several do.
        BadInput: there are no runs.
    """
    run_id = prefix
    seems_orphaned = False
    async with await store_with(url, prefix) as store:
        while True:
            history = await read_history(store, run_id, whole=False)
            run_id = history.run.id
            if history.status == ORPHANED and not seems_orphaned:
                # It may have ended after its record was read: the next read decides.
                seems_orphaned = True
                continue
            seems_orphaned = False
            on_history(history)
            if once or history.status != Status.RUNNING:
                return
            await asyncio.sleep(POLL_S)

"""A real crash: this process is killed at one of a store's writes."""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Literal

from store.session import Store
from store.unit_of_work import Transaction


def crash_at(store: Store, number: int, when: Literal["before", "after"]) -> None:
    """Make this process die at one of a store's writes, as by kill -9.

    A test that crashes a run before and after each of its writes has covered all states of the
    store that a crash can leave.

    Args:
        number: index of the write; 0 is the next one.
        when: before the write begins, or after it is committed.
    """
    transaction, count = store.transaction, itertools.count()

    @asynccontextmanager
    async def crashing_transaction(*, synced: bool = False) -> AsyncIterator[Transaction]:
        is_crash = next(count) == number
        if is_crash and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        async with transaction(synced=synced) as tx:
            yield tx
        if is_crash:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(store, "transaction", crashing_transaction)  # noqa: B010 - of this instance only

"""Leases on runs: a process renews those of its runs; an expired lease shows that it is gone.

The same process looks whether another one has asked it to cancel a run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from orchestrator.clock import Clock
from store.errors import StoreError
from store.records import RunRecord

if TYPE_CHECKING:
    from store.session import Store

logger = logging.getLogger("orchestrate")

LEASE_S = 60.0
"""How long a lease lasts by default, in seconds. After that, other hosts take the run for orphaned:
they cannot check whether its process is alive."""

RENEWALS = 4
"""Renewals per lease, so that a few of them may fail."""

WATCH_S = 1.0
"""Seconds between two looks whether runs are to be cancelled."""


@dataclass(slots=True, eq=False)
class Lease:
    """The right to execute a run and to write its records.

    Attributes:
        attempts: how often the run was begun, this time included; a resume increases it.
        task: executes the run; cancelled if the lease is lost.
        is_lost: another process has taken the run, because this one was suspended for too long.
        is_cancelled: `cancel` asked for it, here or in another process; the task was cancelled.
    """

    run_id: str
    attempts: int
    task: asyncio.Task[object]
    is_lost: bool = False
    is_cancelled: bool = False


class Leases:
    """The leases of one runtime's runs; one task renews them all, one looks for cancellations.

    Args:
        lease_s: how long a lease lasts. The database's clock counts it, where it has one.
    """

    def __init__(self, store: Store, clock: Clock, *, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self._store = store
        self._clock = clock
        self._held: list[Lease] = []
        self._tasks: list[asyncio.Task[None]] = []

    def now(self) -> datetime:
        """Wall time, which advances even while the machine is suspended."""
        return self._clock.wall()

    @asynccontextmanager
    async def held(self, run: RunRecord) -> AsyncIterator[Lease]:
        """Keep renewing the lease of a recorded run until the block ends.

        If the lease is lost nevertheless, or the run is to be cancelled, the task that entered the
        block is cancelled.
        """
        task = asyncio.current_task()
        assert task is not None
        lease = Lease(run.id, run.attempts, task)
        self._held.append(lease)
        if not self._tasks:
            work = (self._renew_periodically(), self._watch_periodically())
            self._tasks = [asyncio.create_task(each) for each in work]
        try:
            yield lease
        finally:
            self._held.remove(lease)
            if not self._held:
                for each in self._tasks:
                    each.cancel()
                self._tasks = []

    async def renew(self) -> None:
        """Renew all leases, and mark those that are lost.

        Raises:
            StoreError: the store cannot be written now.
        """
        held = list(self._held)
        async with self._store.transaction() as tx:
            until = await tx.now(self.now()) + timedelta(seconds=self.lease_s)
            ours = await tx.runs.lease({lease.run_id: lease.attempts for lease in held}, until)
        for lease in held:
            if lease.run_id not in ours and not lease.is_lost:
                lease.is_lost = True
                if lease.task is not asyncio.current_task():  # that one gets RunChanged instead
                    lease.task.cancel()

    async def cancel_requested(self) -> None:
        """Cancel the runs that are to be cancelled.

        Raises:
            StoreError: the store cannot be read now.
        """
        held = [lease for lease in self._held if not lease.is_cancelled]
        if not held:
            return
        async with self._store.reading() as tx:
            requested = await tx.runs.to_cancel([lease.run_id for lease in held])
        for lease in held:
            if lease.run_id in requested and not lease.is_cancelled and lease in self._held:
                lease.is_cancelled = True
                lease.task.cancel()

    async def _watch_periodically(self) -> None:
        while True:
            await asyncio.sleep(WATCH_S)
            try:
                await self.cancel_requested()
            except StoreError as error:
                logger.warning("could not look for cancelled runs: %s", error)
            except Exception:  # as below
                logger.exception("could not look for cancelled runs")

    async def _renew_periodically(self) -> None:
        while True:
            try:
                await self.renew()
            except StoreError as error:
                logger.warning("could not renew the leases of %d runs: %s", len(self._held), error)
            except Exception:  # whatever it is: if this task ended, every run here would be lost
                logger.exception("could not renew the leases of %d runs", len(self._held))
            await asyncio.sleep(self.lease_s / RENEWALS)

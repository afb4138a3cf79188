"""Who is at work on a run: renewed while its process lives, so that others see when it is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta

from orchestrator.clock import Clock
from store.errors import RunChanged, StoreError
from store.records import RunRecord
from store.session import Store

logger = logging.getLogger("orchestrate")

LEASE_S = 60.0
"""A run whose lease is this old is taken for dead, by hosts that cannot look for its process."""

RENEWALS = 4
"""How often a lease is renewed in that time: a few may fail."""


@dataclass(slots=True, eq=False)
class Lease:
    """The right to work on a run.

    Attributes:
        attempts: how often the run was begun, this time included: who resumes it makes it more.
        until: nobody takes the run before that.
        is_lost: somebody has: this process was stopped for longer than a lease lasts.
    """

    leases: Leases
    run_id: str
    attempts: int
    until: datetime
    task: asyncio.Task[object]
    is_lost: bool = False

    async def require(self) -> None:
        """Make sure that the run is still ours, before something is written of it.

        Raises:
            RunChanged: it is not. Who has it goes on from what is recorded.
            StoreError: that cannot be found out.
        """
        if self.leases.now() >= self.until:
            await self.leases.renew()
        if self.is_lost:
            raise RunChanged(self.run_id)


class Leases:
    """The leases of the runs of one runtime: one task renews them all."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._held: list[Lease] = []
        self._renewing: asyncio.Task[None] | None = None

    def now(self) -> datetime:
        """The wall time: it goes on while a machine sleeps."""
        return self._clock.wall()

    @asynccontextmanager
    async def held(self, run: RunRecord) -> AsyncIterator[Lease]:
        """Renew the lease of a run that is recorded, for as long as the block lasts.

        If it is lost all the same, the task that holds it is cancelled.
        """
        task = asyncio.current_task()
        assert task is not None
        lease = Lease(self, run.id, run.attempts, run.leased_until or self.now(), task)
        self._held.append(lease)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew_again_and_again())
        try:
            yield lease
        finally:
            self._held.remove(lease)
            if not self._held:
                self._renewing.cancel()
                self._renewing = None

    async def renew(self) -> None:
        """Renew them all, and find out which of them are lost.

        Raises:
            StoreError: that cannot be done now.
        """
        held = list(self._held)
        until = self.now() + timedelta(seconds=LEASE_S)
        async with self._store.transaction() as tx:
            ours = await tx.runs.lease({lease.run_id: lease.attempts for lease in held}, until)
        for lease in held:
            if lease.run_id in ours:
                lease.until = until
            elif not lease.is_lost:
                lease.is_lost = True
                if lease.task is not asyncio.current_task():  # which is told by an error
                    lease.task.cancel()

    async def _renew_again_and_again(self) -> None:
        while True:
            try:
                await self.renew()
            except StoreError as error:
                logger.warning("the leases of %d runs are not renewed: %s", len(self._held), error)
            except Exception:  # whatever it is: without this task every run here would be lost
                logger.exception("the leases of %d runs are not renewed", len(self._held))
            await asyncio.sleep(LEASE_S / RENEWALS)

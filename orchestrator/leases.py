"""Who is at work on a run: renewed while its process lives, so that others see when it is gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta

from orchestrator.clock import Clock
from store.errors import StoreError
from store.session import Store

logger = logging.getLogger("orchestrate")

LEASE_S = 60.0
"""A run whose lease is this old is taken for dead, by hosts that cannot look for its process."""

RENEWALS = 4
"""How often a lease is renewed in that time: a few may fail."""


class Leases:
    """The leases of the runs of one runtime: one task renews them all."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._runs: set[str] = set()
        self._renewing: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def held(self, run_id: str) -> AsyncIterator[None]:
        """Renew the lease of a run that is recorded, for as long as the block lasts."""
        self._runs.add(run_id)
        if self._renewing is None:
            self._renewing = asyncio.create_task(self._renew())
        try:
            yield
        finally:
            self._runs.discard(run_id)
            if not self._runs:
                self._renewing.cancel()
                self._renewing = None

    async def _renew(self) -> None:
        while True:
            until = self._clock.wall() + timedelta(seconds=LEASE_S)
            try:
                async with self._store.transaction() as tx:
                    await tx.runs.lease(self._runs, until)
            except StoreError as error:
                logger.warning("the leases of %d runs are not renewed: %s", len(self._runs), error)
            await asyncio.sleep(LEASE_S / RENEWALS)

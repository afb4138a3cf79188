"""Writes a run's records: in order, never half, and only while this process holds the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

from orchestrator.cancellation import run_to_completion
from store.records import StepRecord
from store.session import Store
from store.unit_of_work import Transaction

if TYPE_CHECKING:
    from orchestrator.durability.leases import Lease

Work = Callable[[Transaction], Awaitable[None]]


class JournalWriter:
    """Writes each fact of one run in a transaction of its own.

    Attributes:
        lease: the right to write; set once the run's start is recorded. After another process
            has resumed the run, nothing more is written: RunChanged.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._deferred: list[StepRecord] = []
        self._forgotten: list[str] = []
        self.lease: Lease | None = None

    def forget(self, paths: Sequence[str]) -> None:
        """Delete the records of these steps in the next transaction: a changed flow skips them."""
        self._forgotten += paths

    def defer(self, step: StepRecord) -> None:
        """Write a step of kind VALUE in the next transaction.

        That is early enough: nothing can depend on the value before the next write.
        """
        self._deferred.append(step)

    async def begin(
        self,
        work: Work,
        *,
        cancelled: Callable[[asyncio.CancelledError], Awaitable[None]],
        synced: bool = False,
    ) -> None:
        """Write that something begins; if the task is cancelled meanwhile, write its end too."""
        try:
            await self.write(work, synced=synced)
        except asyncio.CancelledError as error:
            await cancelled(error)
            raise

    async def write(self, work: Work, *, synced: bool = False) -> None:
        """Run work in a transaction; it completes even if the task is cancelled meanwhile.

        Args:
            synced: it survives a loss of power, with all that was written before.
        """
        if not self._store.can_write_inline:
            await run_to_completion(self._write_transaction(work, synced))
            return
        try:
            await self._write_transaction(work, synced)
        except asyncio.CancelledError:  # it waited for another process's lock: nothing is written
            await run_to_completion(self._write_transaction(work, synced))
            raise

    async def _write_transaction(self, work: Work, synced: bool) -> None:
        async with self._store.transaction(synced=synced) as tx:
            if self.lease is not None:
                await tx.runs.require_attempt(self._run_id, self.lease.attempts)
            deferred, self._deferred = self._deferred, []
            forgotten, self._forgotten = self._forgotten, []
            try:
                if forgotten:
                    await tx.journal.forget(self._run_id, forgotten)
                for step in deferred:
                    await tx.journal.start(step)
                await work(tx)
            except BaseException:
                self._deferred = deferred + self._deferred
                self._forgotten = forgotten + self._forgotten
                raise

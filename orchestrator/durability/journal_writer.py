"""Writes a run's records: in order, never half, and only while this process holds the lease."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from copy import copy
from datetime import datetime
from typing import TYPE_CHECKING

from orchestrator.cancellation import run_to_completion
from orchestrator.errors import RunInterrupted
from store.errors import (
    AlreadyRecorded,
    PayloadNotEncoded,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreUnreachable,
)
from store.records import StepRecord

if TYPE_CHECKING:
    from orchestrator.durability.leases import Lease
    from store.session import Store
    from store.unit_of_work import Transaction

Work = Callable[["Transaction"], Awaitable[None]]

FAILURES = (
    PayloadNotEncoded,
    StoreClosed,
    StoreCorrupt,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreUnreachable,
)
"""Errors of the store itself; others say that the record is another one than expected."""


class JournalWriter:
    """Writes each fact of one run in a transaction of its own.

    After the store has failed, nothing more begins in the run, even if the flow caught the error:
    that error is not recorded, so a resumed run could not take the same way again.

    Args:
        wall: tells the time now.
    Attributes:
        lease: the right to write; set once the run's start is recorded. After another process
            has resumed the run, nothing more is written: RunChanged.
        is_interrupted: nothing more is written, as if the process had died: RunInterrupted.
    """

    def __init__(self, store: Store, run_id: str, *, wall: Callable[[], datetime]) -> None:
        self._store = store
        self._run_id = run_id
        self._wall = wall
        self._deferred: list[StepRecord] = []
        self._forgotten: list[str] = []
        self._failure: StoreError | None = None
        self.lease: Lease | None = None
        self.is_interrupted = False

    @property
    def is_cancelled(self) -> bool:
        """Whether the run is to be cancelled, by `cancel`, here or in another process."""
        return self.lease is not None and self.lease.is_cancelled

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
        """Write that something begins; if the task is cancelled meanwhile, write its end too.

        Raises:
            StoreError: the store failed, now or in an earlier write of this run.
        """
        self.require_complete()
        try:
            await self.write(work, synced=synced)
        except asyncio.CancelledError as error:
            await cancelled(error)
            raise

    def require_complete(self) -> None:
        """Raise the error with which the store refused an earlier write of this run, if any."""
        if self.is_interrupted:
            raise RunInterrupted(self._run_id)
        if self._failure is not None:
            raise copy(self._failure) from self._failure

    async def write(self, work: Work, *, synced: bool = False) -> None:
        """Run work in a transaction; it completes even if the task is cancelled meanwhile.

        Args:
            synced: it survives a loss of power, with all that was written before.
        """
        if self.is_interrupted:
            raise RunInterrupted(self._run_id)
        try:
            await self._write_to_its_end(work, synced)
        except FAILURES as error:
            self._failure = error
            raise

    async def _write_to_its_end(self, work: Work, synced: bool) -> None:
        if not self._store.can_write_inline:
            await run_to_completion(self._write_transaction(work, synced))
            return
        try:
            await self._write_transaction(work, synced)
        except asyncio.CancelledError:  # it waited for another process's lock: nothing is written
            await run_to_completion(self._write_transaction(work, synced))
            raise

    async def _write_transaction(self, work: Work, synced: bool) -> None:
        forgotten: list[str] = []
        try:
            async with self._store.transaction(synced=synced) as tx:
                if self.lease is not None:
                    await tx.runs.require_attempt(self._run_id, self.lease.attempts)
                forgotten, self._forgotten = self._forgotten, []
                if forgotten:
                    await tx.journal.forget(self._run_id, forgotten, at=self._wall())
                deferred = list(self._deferred)
                for step in deferred:
                    with suppress(AlreadyRecorded):  # by a write that is open too, or that failed
                        await tx.journal.start(step)
                await work(tx)
        except BaseException:
            self._forgotten = forgotten + self._forgotten
            raise
        # Only now: a value that a commit may have lost is written again, by whichever is next.
        self._deferred = [step for step in self._deferred if step not in deferred]

"""How what is recorded of a run is written: in order, to its end, and only by who may."""

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
        lease: the right to write, from when the run's start is recorded. Without it nothing is:
            who has it now records what becomes of the run.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._run_id = run_id
        self._notes: list[StepRecord] = []
        self._forgotten: list[str] = []
        self.lease: Lease | None = None

    def forget(self, paths: Sequence[str]) -> None:
        """Remove steps that a changed flow does not come by, with what is written next."""
        self._forgotten += paths

    def note(self, step: StepRecord) -> None:
        """Write a step that took no time, together with what is written next.

        Nothing that could depend on it happens before that.
        """
        self._notes.append(step)

    async def begin(
        self, work: Work, *, cancelled: Callable[[asyncio.CancelledError], Awaitable[None]]
    ) -> None:
        """Write that something begins; if the task is cancelled meanwhile, its end as well."""
        try:
            await self.write(work)
        except asyncio.CancelledError as error:
            await cancelled(error)
            raise

    async def write(self, work: Work) -> None:
        """Do work in a transaction, to its end even if the task is cancelled meanwhile."""
        if not self._store.answers_at_once:
            await run_to_completion(self._written(work))
            return
        try:
            await self._written(work)
        except asyncio.CancelledError:  # while it waited for another process: nothing is written
            await run_to_completion(self._written(work))
            raise

    async def _written(self, work: Work) -> None:
        if self.lease is not None:
            await self.lease.require()
        async with self._store.transaction() as tx:
            notes, self._notes = self._notes, []
            forgotten, self._forgotten = self._forgotten, []
            try:
                if forgotten:
                    await tx.journal.forget(self._run_id, forgotten)
                for note in notes:
                    await tx.journal.start(note)
                await work(tx)
            except BaseException:
                self._notes = notes + self._notes
                self._forgotten = forgotten + self._forgotten
                raise

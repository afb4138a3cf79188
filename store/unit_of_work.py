"""A unit of work: one transaction and its repositories; it commits as a whole or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import datetime

from sqlalchemy import text

from store.calls import Calls
from store.database.connection import InlineEngine, StoreConnection, StoreEngine
from store.database.failures import named_database_errors
from store.fits import Fits
from store.journal import Journal
from store.patterns import Patterns
from store.payloads import Payloads
from store.queue.claims import Claims
from store.queue.conditions import database_now
from store.queue.schedules import Schedules
from store.queue.waiting import Waiting
from store.retention import Retention
from store.runs import Runs
from store.stages import Stages
from store.state_uses import StateUses
from store.states import States

_SYNC = text(
    "SELECT set_config('synchronous_commit', 'on', true)"
    " WHERE current_setting('synchronous_commit') = 'off'"
)
"""A PostgreSQL server waits for the disk at each commit, unless it is told not to."""


class Transaction:
    """The repositories of one transaction; do not use them after it has ended."""

    __slots__ = (
        "_connection",
        "_uses",
        "calls",
        "claims",
        "fits",
        "journal",
        "patterns",
        "payloads",
        "retention",
        "runs",
        "schedules",
        "stages",
        "states",
        "waiting",
    )

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection
        self._uses = StateUses(connection)
        self.runs = Runs(connection)
        self.states = States(connection, self._uses)
        self.journal = Journal(connection, self.states, self._uses)
        self.calls = Calls(connection)
        self.payloads = Payloads(connection)
        self.patterns = Patterns(connection)
        self.fits = Fits(connection)
        self.stages = Stages(connection)
        self.retention = Retention(connection, self._uses)
        self.waiting = Waiting(connection, self.runs)
        self.claims = Claims(connection)
        self.schedules = Schedules(connection)

    async def now(self, wall: datetime) -> datetime:
        """The time by the database's clock; of a SQLite file `wall`, this machine's."""
        return await database_now(self._connection, wall)

    async def settle(self) -> None:
        """Write what is collected until the end: new states, and how many rows name each.

        Raises:
            StateNotFound: a row names a state that is not stored.
        """
        await self._uses.settle()


@asynccontextmanager
async def unit_of_work(engine: StoreEngine, *, synced: bool = False) -> AsyncIterator[Transaction]:
    """Commit when the block ends; roll back when it raises or is cancelled.

    Exceptions of the block itself pass unchanged; database errors become those of store/errors.py.

    Args:
        synced: the commit survives a loss of power once the block has ended.
    """
    with named_database_errors(engine.url):
        if isinstance(engine, InlineEngine):
            async with engine.begin(synced=synced) as connection:
                transaction = Transaction(connection)
                yield transaction
                await transaction.settle()
            return
        async with engine.begin() as connection:
            if synced:
                await connection.execute(_SYNC)
            transaction = Transaction(connection)
            yield transaction
            await transaction.settle()

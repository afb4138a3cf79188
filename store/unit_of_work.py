"""One transaction: everything in it is recorded together, or nothing is."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from store.calls import Calls
from store.connection import StoreConnection, StoreEngine
from store.failures import named_database_errors
from store.fits import Fits
from store.journal import Journal
from store.patterns import Patterns
from store.payloads import Payloads
from store.retention import Retention
from store.runs import Runs
from store.stages import Stages


class Transaction:
    """The repositories of one transaction; of no use after it ended."""

    __slots__ = ("calls", "fits", "journal", "patterns", "payloads", "retention", "runs", "stages")

    def __init__(self, connection: StoreConnection) -> None:
        self.runs = Runs(connection)
        self.journal = Journal(connection)
        self.calls = Calls(connection)
        self.payloads = Payloads(connection)
        self.patterns = Patterns(connection)
        self.fits = Fits(connection)
        self.stages = Stages(connection)
        self.retention = Retention(connection)


@asynccontextmanager
async def unit_of_work(engine: StoreEngine) -> AsyncIterator[Transaction]:
    """Commit when the block ends, roll back when it raises or is cancelled.

    What the block itself raises passes unchanged; the database's errors get their names.
    """
    with named_database_errors(engine.url):
        async with engine.begin() as connection:
            yield Transaction(connection)

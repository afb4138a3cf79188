"""A unit of work: one transaction and its repositories; it commits as a whole or not at all."""

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
    """The repositories of one transaction; do not use them after it has ended."""

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
    """Commit when the block ends; roll back when it raises or is cancelled.

    Exceptions of the block itself pass unchanged; database errors become those of store/errors.py.
    """
    with named_database_errors(engine.url):
        async with engine.begin() as connection:
            yield Transaction(connection)

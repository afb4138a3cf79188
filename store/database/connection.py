"""Connections of both databases behind one interface.

PostgreSQL is a server: SQLAlchemy's asynchronous engine talks to it. SQLite is a library: a typical
statement takes some ten microseconds, much less than a hand-over to a thread and back, so it runs
in the event loop's thread. Only waiting for another process's lock takes long; the event loop runs
other tasks meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Protocol

from sqlalchemy import Connection, CursorResult, Dialect, Engine, Executable
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from store.database.failures import is_busy

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_RETRY_S = 0.005  # between two attempts to begin a transaction


class StoreConnection(Protocol):
    """The part of a connection that repositories use within a transaction."""

    @property
    def dialect(self) -> Dialect:
        """The dialect of its database."""
        ...

    @property
    def engine(self) -> Any:
        """Its SQLAlchemy engine, blocking or asynchronous; it has a `url`."""
        ...

    async def execute(
        self, statement: Executable, parameters: Parameters | None = None, /
    ) -> CursorResult[Any]:
        """Execute a statement; its rows can be read without waiting."""
        ...

    async def scalar(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None, /
    ) -> Any:
        """The first column of the first row; None without rows."""
        ...


class StoreEngine(Protocol):
    """Opens transactions, each on a connection of its own."""

    @property
    def url(self) -> URL:
        """The database's URL."""
        ...

    def begin(self) -> AbstractAsyncContextManager[StoreConnection]:
        """A transaction: committed when its block ends, rolled back when that raises."""
        ...

    async def dispose(self) -> None:
        """Close the connections that are not in use."""
        ...


class InlineConnection:
    """A blocking connection behind the asynchronous interface: statements run in the caller."""

    __slots__ = ("_connection", "_results")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._results: list[CursorResult[Any]] = []

    def close_results(self) -> None:
        """Close statements with unread rows, for example because reading a row failed.

        While such a statement is open, SQLite keeps the connection at the snapshot that the
        statement sees, in later transactions too. A traceback may keep the statement alive.
        """
        for result in self._results:
            result.close()

    @property
    def dialect(self) -> Dialect:
        """The dialect of its database."""
        return self._connection.dialect

    @property
    def engine(self) -> Any:
        """Its SQLAlchemy engine."""
        return self._connection.engine

    async def execute(
        self, statement: Executable, parameters: Parameters | None = None, /
    ) -> CursorResult[Any]:
        """Execute a statement; its rows can be read without waiting."""
        result = self._connection.execute(statement, parameters)
        if result.returns_rows:
            self._results.append(result)
        return result

    async def scalar(
        self, statement: Executable, parameters: Mapping[str, Any] | None = None, /
    ) -> Any:
        """The first column of the first row; None without rows."""
        return self._connection.scalar(statement, parameters)

    def driver_scalar(self, statement: str, *parameters: str) -> Any:
        """As `scalar`, past SQLAlchemy: for a statement that every write needs."""
        driver: Any = self._connection.connection.driver_connection
        row = driver.execute(statement, parameters).fetchone()
        return None if row is None else row[0]


@contextmanager
def _syncing(connection: Connection, synced: bool) -> Iterator[None]:
    """Make the commit in this block wait for the disk; SQLite decides that per connection."""
    if not synced:
        yield
        return
    driver: Any = connection.connection.driver_connection
    driver.execute("PRAGMA synchronous=FULL")
    try:
        yield
    finally:
        if connection.in_transaction():
            connection.rollback()  # within a transaction the setting cannot be changed
        driver.execute("PRAGMA synchronous=NORMAL")


class InlineEngine:
    """A blocking engine, used without threads.

    Args:
        max_open: transactions that may be open at once; further ones of this process wait.
        wait_s: seconds to wait for one of those to end, and for other processes' locks.
    """

    def __init__(self, engine: Engine, *, max_open: int, wait_s: float) -> None:
        self._engine = engine
        self._slots = asyncio.Semaphore(max_open)
        self._wait_s = wait_s

    @property
    def url(self) -> URL:
        """The database's URL."""
        return self._engine.url

    @property
    def is_full(self) -> bool:
        """Whether so many transactions are open that a further one would wait."""
        return self._slots.locked()

    @asynccontextmanager
    async def begin(self, *, synced: bool = False) -> AsyncIterator[StoreConnection]:
        """A transaction: committed when its block ends, rolled back when that raises.

        Args:
            synced: the commit, and every one before it, is on the disk when the block has ended.
        Raises:
            sqlalchemy.exc.TimeoutError: too many transactions were open for `wait_s`.
            OperationalError: among others, another process held its lock for `wait_s`.
        """
        await self._acquire_slot()
        try:
            with self._engine.connect() as connection, _syncing(connection, synced):
                await self._begin(connection)
                inline = InlineConnection(connection)
                try:
                    yield inline
                finally:
                    inline.close_results()
                connection.commit()
        finally:
            self._slots.release()

    async def dispose(self) -> None:
        """Close the connections that are not in use."""
        self._engine.dispose()

    async def _acquire_slot(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()  # does not wait
            return
        try:
            async with asyncio.timeout(self._wait_s):
                await self._slots.acquire()
        except TimeoutError as error:
            raise PoolTimeout(f"no other transaction ended within {self._wait_s:g} s") from error

    async def _begin(self, connection: Connection) -> None:
        """Begin a transaction; retry while another process holds the lock."""
        give_up_s = time.monotonic() + self._wait_s
        while True:
            try:
                connection.begin()
            except OperationalError as error:
                if not is_busy(error) or time.monotonic() > give_up_s:
                    raise
            else:
                return
            await asyncio.sleep(_RETRY_S)

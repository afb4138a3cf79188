"""Connections of both databases behind one interface.

PostgreSQL is a server, and SQLAlchemy's asynchronous engine talks to it. SQLite is a library: a
statement of ours takes some ten microseconds, a fraction of what it takes to hand it to a thread
and back, so it runs where it is asked for. Only the wait for another process's lock takes long,
and there the event loop goes on.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Protocol

from sqlalchemy import Connection, CursorResult, Dialect, Engine, Executable
from sqlalchemy.engine import URL
from sqlalchemy.exc import OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from store.failures import is_busy

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_RETRY_S = 0.005


class StoreConnection(Protocol):
    """What repositories need of a connection within a transaction."""

    @property
    def dialect(self) -> Dialect:
        """Of its database."""
        ...

    @property
    def engine(self) -> Any:
        """That it is of: a SQLAlchemy engine of either kind, with its `url`."""
        ...

    async def execute(
        self, statement: Executable, parameters: Parameters | None = None, /
    ) -> CursorResult[Any]:
        """Execute a statement; its rows are there."""
        ...

    async def scalar(self, statement: Executable, /) -> Any:
        """The first column of the first row; None without rows."""
        ...


class StoreEngine(Protocol):
    """Gives connections out, each with a transaction of its own."""

    @property
    def url(self) -> URL:
        """Of the database."""
        ...

    def begin(self) -> AbstractAsyncContextManager[StoreConnection]:
        """A transaction: committed when its block ends, rolled back when that raises."""
        ...

    async def dispose(self) -> None:
        """Close what is not in use."""
        ...


class InlineConnection:
    """A blocking connection whose statements run at once."""

    __slots__ = ("_connection", "_results")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._results: list[CursorResult[Any]] = []

    def close_results(self) -> None:
        """End statements whose rows were not all read, as where reading them failed.

        SQLite keeps a connection at the moment that such a statement sees, whatever transaction
        comes after, and a traceback may keep the statement alive for good.
        """
        for result in self._results:
            result.close()

    @property
    def dialect(self) -> Dialect:
        """Of its database."""
        return self._connection.dialect

    @property
    def engine(self) -> Any:
        """That it is of."""
        return self._connection.engine

    async def execute(
        self, statement: Executable, parameters: Parameters | None = None, /
    ) -> CursorResult[Any]:
        """Execute a statement; its rows are there."""
        result = self._connection.execute(statement, parameters)
        if result.returns_rows:
            self._results.append(result)
        return result

    async def scalar(self, statement: Executable, /) -> Any:
        """The first column of the first row; None without rows."""
        return self._connection.scalar(statement)


class InlineEngine:
    """A blocking engine, used without threads.

    Args:
        places: transactions that may be open at once; others of this process wait their turn.
        wait_s: how long to wait for a turn, and for other processes.
    """

    def __init__(self, engine: Engine, *, places: int, wait_s: float) -> None:
        self._engine = engine
        self._turns = asyncio.Semaphore(places)
        self._wait_s = wait_s

    @property
    def url(self) -> URL:
        """Of the database."""
        return self._engine.url

    @property
    def is_taken(self) -> bool:
        """Whether all its places are: a further transaction would wait."""
        return self._turns.locked()

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[StoreConnection]:
        """A transaction: committed when its block ends, rolled back when that raises.

        Raises:
            sqlalchemy.exc.TimeoutError: no turn came in time.
            OperationalError: another process held its lock for too long, among others.
        """
        await self._take_turn()
        try:
            with self._engine.connect() as connection:
                await self._begin(connection)
                inline = InlineConnection(connection)
                try:
                    yield inline
                finally:
                    inline.close_results()
                connection.commit()
        finally:
            self._turns.release()

    async def dispose(self) -> None:
        """Close what is not in use."""
        self._engine.dispose()

    async def _take_turn(self) -> None:
        if not self._turns.locked():
            await self._turns.acquire()  # at once
            return
        try:
            async with asyncio.timeout(self._wait_s):
                await self._turns.acquire()
        except TimeoutError as error:
            raise PoolTimeout(f"no turn within {self._wait_s:g} s") from error

    async def _begin(self, connection: Connection) -> None:
        """Begin a transaction, asking again while another process holds the lock."""
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

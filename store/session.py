"""Open a store: connections set up, schema brought to this version.

SQLite stores have one connection for writing, for which the tasks of a process queue in memory,
and a pool for reading that cannot write. WAL lets both work at once. With synchronous=NORMAL a
commit is in the operating system's hands before it is acknowledged: it survives the death of the
process at any instruction, though the last ones may be lost, never torn, when the whole machine
loses power. PostgreSQL keeps its own defaults.
"""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import AbstractAsyncContextManager, closing
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine

from store.connection import InlineEngine, StoreEngine
from store.errors import StoreClosed
from store.failures import is_missing_table, named_opening_errors
from store.unit_of_work import Transaction, unit_of_work
from store.urls import connect_args, file_of, is_sqlite, normalised, shown, wait_s

HEAD = "0007"  # the newest revision in migrations/versions

_SQLITE_READERS = 4
_BUSY_S = 0.005  # how long the event loop may stand still for another process's lock
_REVISIONS = "SELECT version_num FROM alembic_version"


class Store:
    """An open store. Close it after its last transaction has ended."""

    def __init__(self, url: URL, *, writer: StoreEngine, reader: StoreEngine) -> None:
        self._url = url
        self._writer = writer
        self._reader = reader
        self._is_open = True

    @property
    def url(self) -> str:
        """Where the store is, without a password."""
        return shown(self._url)

    @property
    def answers_at_once(self) -> bool:
        """Whether a transaction that writes can begin now, and runs without any pause."""
        return isinstance(self._writer, InlineEngine) and not self._writer.is_taken

    def transaction(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction that may write: committed as a whole when its block ends.

        A SQLite store has one at a time. Do nothing slow in it, and never begin one within
        another: it would wait for itself.

        Raises:
            StoreClosed: now.
            StoreLocked, StoreFull, StoreCorrupt, StoreUnreachable: in the block, or at its end.
        """
        self._require_open()
        return unit_of_work(self._writer)

    def reading(self) -> AbstractAsyncContextManager[Transaction]:
        """A transaction that sees the store as it is at its first statement; cannot write."""
        self._require_open()
        return unit_of_work(self._reader)

    async def close(self) -> None:
        """Close every connection; once is enough, twice does no harm."""
        self._is_open = False
        await self._reader.dispose()
        await self._writer.dispose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    def _require_open(self) -> None:
        if not self._is_open:
            raise StoreClosed(self.url)


async def open_store(url: str) -> Store:
    """Open the store at a URL; create it, or bring its schema up to date, where needed.

    Args:
        url: sqlite:///file (relative to the working directory; sqlite:////file is absolute), with
            ?timeout=5 to wait for other writers that many seconds instead of 30, or
            postgresql://user@host/name.

    Raises:
        StoreUnreachable: the URL, folder, rights, driver or server are wrong.
        StoreCorrupt: the file is no database.
        StoreNewer: a newer version wrote it.
        StoreLocked, StoreFull: another process is in the way; no room to create it.
    """
    address = normalised(url)
    with named_opening_errors(address):
        if is_sqlite(address):
            file_of(address).parent.mkdir(parents=True, exist_ok=True)
        writer, reader = _engines(address)
        store = Store(address, writer=writer, reader=reader)
        try:
            if await _revisions(address, reader) != [HEAD]:
                # Alembic takes longer to import than the rest of opening does.
                from store.schema import upgrade

                await asyncio.to_thread(upgrade, address)
        except BaseException:
            await store.close()
            raise
    return store


async def _revisions(url: URL, engine: StoreEngine) -> list[str]:
    """The schema revisions that a database says it has; none if it is new."""
    try:
        if is_sqlite(url):
            return await asyncio.to_thread(_revisions_in_file, url)
        async with engine.begin() as connection:
            return list((await connection.execute(text(_REVISIONS))).scalars())
    except (DBAPIError, sqlite3.Error) as error:
        if is_missing_table(error):
            return []
        raise


def _revisions_in_file(url: URL) -> list[str]:
    """The same of a file, without leaving a connection in a pool."""
    with closing(sqlite3.connect(file_of(url), timeout=wait_s(url))) as connection:
        return [revision for (revision,) in connection.execute(_REVISIONS)]


def _engines(url: URL) -> tuple[StoreEngine, StoreEngine]:
    """An engine to write with, and one to read with."""
    options: dict[str, Any] = {
        "pool_timeout": wait_s(url),
        "hide_parameters": True,  # an error's text must not carry prompts into a log
    }
    if is_sqlite(url):
        # IMMEDIATE takes the write lock at once. A transaction that read first and then asked for
        # it would fail without waiting, whenever another had written in between.
        writer = _sqlite_engine(url, "BEGIN IMMEDIATE", places=1, busy_s=_BUSY_S, **options)
        reader = _sqlite_engine(
            url, "BEGIN DEFERRED", places=_SQLITE_READERS, busy_s=wait_s(url), **options
        )
        return writer, reader
    # A server may have restarted since a pooled connection was last used.
    server = create_async_engine(url, connect_args=connect_args(url), pool_pre_ping=True, **options)
    snapshot = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    return cast("StoreEngine", server), cast("StoreEngine", server.execution_options(**snapshot))


def _sqlite_engine(
    url: URL, begin: str, *, places: int, busy_s: float, **options: Any
) -> InlineEngine:
    engine = create_engine(
        url, connect_args={"timeout": busy_s}, pool_size=places, max_overflow=0, **options
    )
    query_only = "OFF" if places == 1 else "ON"
    event.listen(engine, "connect", partial(_set_up, query_only=query_only))
    event.listen(engine, "begin", partial(_begin, statement=begin))
    return InlineEngine(engine, places=places, wait_s=wait_s(url))


def _set_up(connection: DBAPIConnection, _record: object, *, query_only: str) -> None:
    """Prepare a new SQLite connection; WAL is a property of the file and set with its schema."""
    connection.isolation_level = None  # we begin transactions ourselves
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute(f"PRAGMA query_only={query_only}")
    cursor.close()


def _begin(connection: Connection, *, statement: str) -> None:
    connection.exec_driver_sql(statement)

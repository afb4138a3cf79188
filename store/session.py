"""Open a store: set up its connections and migrate its schema to this version.

A SQLite store has one connection for writing, for which the tasks of a process queue, and a pool
of read-only connections. In WAL mode both work at the same time. With synchronous=NORMAL a commit
is written to the operating system before it is acknowledged: it survives the death of the process
at any moment. If the machine loses power, the last commits may be lost as a whole, but none in
part, and none before a `synced` one. PostgreSQL keeps its defaults.
"""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    closing,
    nullcontext,
)
from functools import partial
from types import TracebackType
from typing import Any, Self, cast

from filelock import FileLock
from sqlalchemy import Connection, create_engine, event, text
from sqlalchemy.engine import URL
from sqlalchemy.engine.interfaces import DBAPIConnection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.util import await_only

from store.database.connection import InlineEngine, StoreEngine
from store.database.failures import is_missing_table, named_opening_errors
from store.database.postgres import pool_size, wait_for_connections
from store.database.sqlite_file import APPLICATION_ID, check_pages, lock_of, opened, prepare
from store.database.urls import (
    connect_args,
    file_of,
    is_sqlite,
    normalised,
    wait_s,
    without_password,
)
from store.errors import StoreClosed, StoreUnreachable
from store.payload_codec import PayloadCodec
from store.queue.listening import listen
from store.unit_of_work import Transaction, unit_of_work

HEAD = "0013"  # the newest revision in migrations/versions

SQLITE_LOOK_S = 0.25
"""Seconds between two looks for submitted runs in a SQLite store."""

_SQLITE_READERS = 4  # connections for reading
_BUSY_S = 0.005  # how long a writer may block the event loop while another process has the lock
_REVISIONS = "SELECT version_num FROM alembic_version"


class Store:
    """An open store. Close it after its last transaction has ended.

    Attributes:
        codec: for users' data; whoever writes or reads these applies it (see payload_codec.py).
    """

    def __init__(
        self,
        url: URL,
        *,
        writer: StoreEngine,
        reader: StoreEngine,
        codec: PayloadCodec | None = None,
    ) -> None:
        self.codec = codec
        self._url = url
        self._writer = writer
        self._reader = reader
        self._is_open = True

    @property
    def url(self) -> str:
        """The store's URL, without a password."""
        return without_password(self._url)

    @property
    def can_write_inline(self) -> bool:
        """Whether a write transaction can begin now and runs without leaving the event loop."""
        return isinstance(self._writer, InlineEngine) and not self._writer.is_full

    def transaction(self, *, synced: bool = False) -> AbstractAsyncContextManager[Transaction]:
        """A transaction that may write; it commits when its block ends.

        A SQLite store has one at a time. Do nothing slow in it. Do not begin one within another:
        the inner one would wait for the outer one, and fail with StoreLocked.

        Args:
            synced: what was committed until then survives a loss of power, not only the death of
                the process. It takes as long as the disk.
        Raises:
            StoreClosed: when it is called.
            StoreLocked, StoreFull, StoreCorrupt, StoreUnreachable: in the block, or at its end.
        """
        self._require_open()
        return unit_of_work(self._writer, synced=synced)

    def reading(self) -> AbstractAsyncContextManager[Transaction]:
        """A read-only transaction; it sees a snapshot taken at its first statement."""
        self._require_open()
        return unit_of_work(self._reader)

    async def listen(self, woken: Callable[[], None]) -> None:
        """Call `woken` once another process may have submitted a run, until cancelled.

        Raises:
            StoreUnreachable: PostgreSQL's connection was lost.
        """
        self._require_open()
        if is_sqlite(self._url):  # a file tells nothing: look again and again
            while True:
                woken()
                await asyncio.sleep(SQLITE_LOOK_S)
        await listen(self._url, woken)

    async def close(self) -> None:
        """Close every connection; a second call does nothing."""
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


async def open_store(url: str, *, codec: PayloadCodec | None = None) -> Store:
    """Open the store at a URL; create it or migrate its schema if needed.

    Args:
        url: sqlite:///file (relative to the working directory; sqlite:////file is absolute), with
            ?timeout=5 to wait for other writers that many seconds instead of 30, or
            postgresql://user@host/name, with ?pool_size=8 for that many connections instead of 2.
        codec: encodes users' data in it.

    Raises:
        StoreUnreachable: the URL, folder, permissions, driver or server are wrong, or the file is
            another program's.
        StoreCorrupt: the file is not a database, or damaged.
        StoreNewer: a newer version wrote it.
        StoreLocked: another process held it for too long.
        StoreFull: there is no space to create it.
    """
    address = normalised(url)
    with named_opening_errors(address):
        writer, reader = _engines(address)  # first, as a refused URL must create no file
        if is_sqlite(address):
            prepare(file_of(address))
            await asyncio.to_thread(check_pages, address)
        store = Store(address, writer=writer, reader=reader, codec=codec)
        try:
            if await _revisions(address, reader) != [HEAD]:
                await asyncio.to_thread(_migrate, address)
            if is_sqlite(address):
                opened(file_of(address))
        except BaseException:
            await store.close()
            raise
    return store


async def _revisions(url: URL, engine: StoreEngine) -> list[str]:
    """The schema revisions that a database has; empty if it is new."""
    try:
        if is_sqlite(url):
            return await asyncio.to_thread(_revisions_in_file, url)
        async with engine.begin() as connection:
            return list((await connection.execute(text(_REVISIONS))).scalars())
    except (DBAPIError, sqlite3.Error) as error:
        if is_missing_table(error):
            return []
        raise


def _migrate(url: URL) -> None:
    """Migrate a database; of several processes the first one does, and the others wait for it.

    A SQLite file has a lock file for that: the switch to WAL mode happens outside of a transaction,
    where SQLite does not wait for other processes. PostgreSQL has an advisory lock instead.
    """
    lock: AbstractContextManager[object] = nullcontext()
    if is_sqlite(url):
        timeout_s = wait_s(url)
        lock = FileLock(lock_of(file_of(url)), timeout=timeout_s, mode=0o600, thread_local=False)
    with lock:
        if is_sqlite(url) and _revisions_in_file(url) == [HEAD]:
            return  # another process has done it meanwhile
        # Importing Alembic takes longer than the rest of opening a store.
        from store.database.schema import upgrade

        upgrade(url)


def _revisions_in_file(url: URL) -> list[str]:
    """The schema revisions of a SQLite file, none if it is new; leaves no connection in a pool."""
    with closing(sqlite3.connect(file_of(url), timeout=wait_s(url))) as connection:
        [(application_id,)] = connection.execute("PRAGMA application_id")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master")}
        is_ours = {"alembic_version", "runs"} <= tables if tables else True
        if not is_ours or application_id not in (0, APPLICATION_ID):
            raise StoreUnreachable(without_password(url), "it is another program's database")
        return [revision for (revision,) in connection.execute(_REVISIONS)] if tables else []


def _engines(url: URL) -> tuple[StoreEngine, StoreEngine]:
    """The engine for writing and the engine for reading."""
    options: dict[str, Any] = {
        "pool_timeout": wait_s(url),
        "hide_parameters": True,  # prompts must not get into logs with an error's text
    }
    if is_sqlite(url):
        # IMMEDIATE takes the write lock at the start. A transaction that reads first and requests
        # the lock later fails without waiting if another one has written in between.
        writer = _sqlite_engine(url, "BEGIN IMMEDIATE", max_open=1, busy_s=_BUSY_S, **options)
        reader = _sqlite_engine(
            url, "BEGIN DEFERRED", max_open=_SQLITE_READERS, busy_s=wait_s(url), **options
        )
        return writer, reader
    # pool_pre_ping: the server may have restarted since a pooled connection was last used.
    server = create_async_engine(
        url.difference_update_query(["pool_size"]),
        connect_args=connect_args(url),
        pool_pre_ping=True,
        pool_size=pool_size(url),
        max_overflow=0,
        **options,
    )
    wait_for_connections(server.sync_engine, url, sleep=lambda s: await_only(asyncio.sleep(s)))
    snapshot = {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
    return cast("StoreEngine", server), cast("StoreEngine", server.execution_options(**snapshot))


def _sqlite_engine(
    url: URL, begin: str, *, max_open: int, busy_s: float, **options: Any
) -> InlineEngine:
    engine = create_engine(
        url, connect_args={"timeout": busy_s}, pool_size=max_open, max_overflow=0, **options
    )
    query_only = "OFF" if max_open == 1 else "ON"
    event.listen(engine, "connect", partial(_set_up, query_only=query_only))
    event.listen(engine, "begin", partial(_begin, statement=begin))
    return InlineEngine(engine, max_open=max_open, wait_s=wait_s(url))


def _set_up(connection: DBAPIConnection, _record: object, *, query_only: str) -> None:
    """Configure a new SQLite connection; WAL mode was set when the file was migrated."""
    connection.isolation_level = None  # the engine begins transactions, see `_begin`
    cursor = connection.cursor()
    cursor.execute("PRAGMA foreign_keys=ON")
    cursor.execute("PRAGMA synchronous=NORMAL")
    cursor.execute(f"PRAGMA query_only={query_only}")
    cursor.close()


def _begin(connection: Connection, *, statement: str) -> None:
    connection.exec_driver_sql(statement)

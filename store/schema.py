"""Bring a database to the schema of this version: at most once, whoever opens it first.

Nothing here is needed once a store is at the head, so session.py imports it only when the one
query of its fast path finds another revision; Alembic stays out of the common start.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from filelock import FileLock
from sqlalchemy import Connection, NullPool, create_engine, event
from sqlalchemy.engine import URL, Engine

from store.errors import StoreNewer
from store.failures import is_busy, named_opening_errors
from store.urls import connect_args, file_of, is_sqlite, shown, wait_s

MIGRATIONS = Path(__file__).parent / "migrations"

_ADVISORY_KEY = 0x6F726368  # "orch": any number that other programs are unlikely to lock
_RETRY_S = 0.01

# Alembic keeps the migration at work in module globals: one at a time in a process.
_ALEMBIC = threading.Lock()


def alembic_config() -> Config:
    """Alembic's configuration, found wherever the package is installed."""
    config = Config()
    # Alembic reads % as interpolation, and a folder's name may hold one.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(url: URL) -> None:
    """Bring the database to the head in one transaction, alone; blocks, so call it in a thread.

    A process killed half-way leaves the database as it was before.

    Raises:
        StoreNewer: the database is of a revision that this version does not know.
        StoreLocked, StoreFull, StoreCorrupt, StoreUnreachable: as their names say.
    """
    with named_opening_errors(url), _engine(url) as engine, _alone(engine), _ALEMBIC:
        config = alembic_config()
        with engine.begin() as connection:
            if not is_sqlite(url):
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_KEY})")
            _refuse_newer(connection, ScriptDirectory.from_config(config), url)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


@contextmanager
def _engine(url: URL) -> Iterator[Engine]:
    """A blocking engine that holds no connection when it is done."""
    driver = "sqlite" if is_sqlite(url) else "postgresql+psycopg"
    blocking_url = url.set(drivername=driver)
    engine = create_engine(blocking_url, poolclass=NullPool, connect_args=connect_args(url))
    if is_sqlite(url):
        event.listen(engine, "connect", _leave_transactions_to_us)
        event.listen(engine, "begin", _begin_immediate)
    try:
        yield engine
    finally:
        engine.dispose()


def _leave_transactions_to_us(connection: sqlite3.Connection, _record: object) -> None:
    # Python's driver would commit before each CREATE TABLE, and so halve a migration.
    connection.isolation_level = None


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


@contextmanager
def _alone(engine: Engine) -> Iterator[None]:
    """Hold what keeps other processes from preparing the same store, and make it a WAL one.

    The transaction alone would do for the tables; the switch to WAL happens outside of one, and
    SQLite does not wait for others there. PostgreSQL locks within the transaction instead.
    """
    if not is_sqlite(engine.url):
        yield
        return
    file = file_of(engine.url)
    with FileLock(
        file.with_name(file.name + ".lock"), timeout=wait_s(engine.url), thread_local=False
    ):
        _switch_to_wal(engine)
        yield


def _switch_to_wal(engine: Engine) -> None:
    """WAL is a property of the file: it stays for every later connection."""
    give_up = time.monotonic() + wait_s(engine.url)
    with closing(engine.raw_connection()) as connection:
        while True:
            try:
                # Not before its row is fetched is the statement done, and the switch with it.
                connection.cursor().execute("PRAGMA journal_mode=WAL").fetchall()
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > give_up:
                    raise
                time.sleep(_RETRY_S)
            else:
                return


def _refuse_newer(connection: Connection, scripts: ScriptDirectory, url: URL) -> None:
    """Raise before touching a database whose revision is none of ours."""
    known = {script.revision for script in scripts.walk_revisions()}
    for revision in MigrationContext.configure(connection).get_current_heads():
        if revision not in known:
            raise StoreNewer(shown(url), revision)

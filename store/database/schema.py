"""Migrate a database to the schema of this version, on its first use by this version.

session.py imports this module only if the database is at another revision than HEAD, because
importing Alembic would slow down every start.
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
from sqlalchemy import Connection, NullPool, create_engine, event
from sqlalchemy.engine import URL, Engine

from store.database.failures import is_busy, named_opening_errors
from store.database.postgres import wait_for_connections
from store.database.urls import connect_args, is_sqlite, wait_s, without_password
from store.errors import StoreNewer

MIGRATIONS = Path(__file__).parents[1] / "migrations"

_ADVISORY_KEY = 0x6F726368  # "orch": arbitrary, unlikely to be locked by another program
_RETRY_S = 0.01  # between two attempts to switch to WAL

# Alembic keeps the current migration in module globals: a process can run only one at a time.
_ALEMBIC = threading.Lock()


def alembic_config() -> Config:
    """Alembic's configuration, with the migrations of the installed package."""
    config = Config()
    # Alembic interpolates %, and a folder's name may contain one.
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config


def upgrade(url: URL) -> None:
    """Migrate the database to the newest revision, in one transaction.

    If the process is killed meanwhile, the database does not change. Call it in a thread: it
    blocks. For a SQLite file hold its lock, as `session` does.

    Raises:
        StoreNewer: the database has a revision that this version does not know.
        StoreLocked, StoreFull, StoreCorrupt, StoreUnreachable: see store/errors.py.
    """
    with named_opening_errors(url), _engine(url) as engine, _ALEMBIC:
        if is_sqlite(url):
            _switch_to_wal(engine)
        config = alembic_config()
        with engine.begin() as connection:
            if not is_sqlite(url):
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_ADVISORY_KEY})")
            _refuse_newer(connection, ScriptDirectory.from_config(config), url)
            config.attributes["connection"] = connection
            command.upgrade(config, "head")


@contextmanager
def _engine(url: URL) -> Iterator[Engine]:
    """A blocking engine, disposed of at the end; it pools no connections."""
    driver = "sqlite" if is_sqlite(url) else "postgresql+psycopg"
    blocking_url = url.set(drivername=driver).difference_update_query(["pool_size"])
    engine = create_engine(blocking_url, poolclass=NullPool, connect_args=connect_args(url))
    if is_sqlite(url):
        event.listen(engine, "connect", _disable_autocommit)
        event.listen(engine, "begin", _begin_immediate)
    else:
        wait_for_connections(engine, url, sleep=time.sleep)
    try:
        yield engine
    finally:
        engine.dispose()


def _disable_autocommit(connection: sqlite3.Connection, _record: object) -> None:
    # Python's sqlite3 would commit before each CREATE TABLE, and so split a migration.
    connection.isolation_level = None


def _begin_immediate(connection: Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def _switch_to_wal(engine: Engine) -> None:
    """Switch to WAL mode. It is a property of the file and applies to all later connections."""
    give_up = time.monotonic() + wait_s(engine.url)
    with closing(engine.raw_connection()) as connection:
        while True:
            try:
                # The switch happens when the statement's row is fetched.
                connection.cursor().execute("PRAGMA journal_mode=WAL").fetchall()
            except sqlite3.OperationalError as error:
                if not is_busy(error) or time.monotonic() > give_up:
                    raise
                time.sleep(_RETRY_S)
            else:
                return


def _refuse_newer(connection: Connection, scripts: ScriptDirectory, url: URL) -> None:
    """Raise StoreNewer if the database has a revision that has no migration here."""
    known = {script.revision for script in scripts.walk_revisions()}
    for revision in MigrationContext.configure(connection).get_current_heads():
        if revision not in known:
            raise StoreNewer(without_password(url), revision)

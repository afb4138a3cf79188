"""The real database below a simulation: one file for all schedules, emptied before each."""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from store.session import Store, open_store

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - a new folder of its own is made there
_IN_MEMORY = _SHARED_MEMORY if _SHARED_MEMORY.is_dir() else None
"""Where a file needs no disk, on systems that have such a folder."""

_TABLES = """
    SELECT name FROM sqlite_master
    WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND name != 'alembic_version'
"""

_OF_PROCESSES = {"claimed_at", "host", "leased_until", "process", "process_id"}
"""Columns that say which process did something; nothing follows from them for another one."""


@dataclass(frozen=True, slots=True)
class Database:
    """A store and a second connection to its file.

    Attributes:
        columns: of each table those that decide what a resumed run does.
    """

    store: Store
    connection: sqlite3.Connection
    columns: dict[str, Sequence[str]]

    def empty(self) -> None:
        """Delete all rows."""
        for table in self.columns:
            self.connection.execute(f'DELETE FROM "{table}"')  # noqa: S608 - our own names

    def contents(self) -> bytes:
        """A digest of all rows, in whichever order they were written."""
        digest = blake3()
        for table, columns in self.columns.items():
            names = ", ".join(f'"{each}"' for each in columns)
            rows = self.connection.execute(f'SELECT {names} FROM "{table}"')  # noqa: S608
            digest.update(f"{table}: {sorted(map(repr, rows))}".encode())
        return digest.digest()


@asynccontextmanager
async def simulated_database() -> AsyncIterator[Database]:
    """A new database, in memory if possible; deleted at the end."""
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY) as folder:
        file = Path(folder) / "runs.db"
        async with await open_store(f"sqlite:///{file}") as store:
            with closing(sqlite3.connect(file, isolation_level=None)) as connection:
                columns: dict[str, Sequence[str]] = {
                    table: [
                        name
                        for _, name, *_ in connection.execute(f'PRAGMA table_info("{table}")')
                        if name not in _OF_PROCESSES
                    ]
                    for (table,) in connection.execute(_TABLES).fetchall()
                }
                yield Database(store, connection, columns)

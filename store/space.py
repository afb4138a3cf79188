"""The room that a SQLite store takes on its disk. A server sees to its own (autovacuum)."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy.engine import URL

from store.failures import named_opening_errors
from store.urls import file_of, is_sqlite, normalised, wait_s

LEAST_FREE = 0.05
"""The part of a file's pages that must be free for it to be written anew: fewer are soon used."""


def stored_bytes(url: str) -> int | None:
    """Bytes that the file of a store takes, with its log of late changes; None for a server."""
    address = normalised(url)
    if not is_sqlite(address):
        return None
    with named_opening_errors(address):
        file = file_of(address)
        return sum(_size(path) for path in (file, file.with_name(f"{file.name}-wal")))


async def reclaim(url: str) -> None:
    """Give the disk back what a SQLite store's file holds of free pages, where those are many.

    Writes the file anew, in a thread: others can read meanwhile, and writers wait. No transaction
    of this process may be open. Killed at any moment it leaves the store as it was.

    Raises:
        StoreLocked: another process wrote for too long.
        StoreFull: it takes up to twice the file's room.
        StoreCorrupt, StoreUnreachable: as their names say.
    """
    address = normalised(url)
    if not is_sqlite(address):
        return
    with named_opening_errors(address):
        await asyncio.to_thread(_write_anew, address)


def _write_anew(url: URL) -> None:
    with closing(
        sqlite3.connect(file_of(url), timeout=wait_s(url), isolation_level=None)
    ) as connection:
        [(free,)] = connection.execute("PRAGMA freelist_count").fetchall()
        [(pages,)] = connection.execute("PRAGMA page_count").fetchall()
        if free and free >= LEAST_FREE * pages:
            connection.execute("VACUUM")
            # Only now the file is cut; while somebody reads the old one, by a later checkpoint.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0

"""Disk space of a SQLite store. PostgreSQL reclaims its space by itself (autovacuum)."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path

from sqlalchemy.engine import URL

from store.failures import named_opening_errors
from store.urls import file_of, is_sqlite, normalised, wait_s

MIN_FREE_SHARE = 0.05
"""A file is rewritten if this share of its pages is free; fewer are soon used again."""


def stored_bytes(url: str) -> int | None:
    """Bytes of a SQLite store's file and write-ahead log; None for PostgreSQL."""
    address = normalised(url)
    if not is_sqlite(address):
        return None
    with named_opening_errors(address):
        file = file_of(address)
        return sum(_size(path) for path in (file, file.with_name(f"{file.name}-wal")))


async def reclaim(url: str) -> None:
    """Return the free pages of a SQLite store's file to the file system, if they are many.

    The file is rewritten in a thread. Other connections can read meanwhile, and writers wait. This
    process may have no open transaction. If it is killed meanwhile, the store does not change.

    Raises:
        StoreLocked: another process held the write lock for too long.
        StoreFull: rewriting needs free space of up to twice the file's size.
        StoreCorrupt, StoreUnreachable: see store/errors.py.
    """
    address = normalised(url)
    if not is_sqlite(address):
        return
    with named_opening_errors(address):
        await asyncio.to_thread(_vacuum, address)


def _vacuum(url: URL) -> None:
    with closing(
        sqlite3.connect(file_of(url), timeout=wait_s(url), isolation_level=None)
    ) as connection:
        [(free,)] = connection.execute("PRAGMA freelist_count").fetchall()
        [(pages,)] = connection.execute("PRAGMA page_count").fetchall()
        if free and free >= MIN_FREE_SHARE * pages:
            connection.execute("VACUUM")
            # VACUUM writes to the log; this checkpoint shortens the file. If another connection
            # still reads the old pages, a later checkpoint does.
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except FileNotFoundError:
        return 0

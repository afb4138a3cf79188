"""The file of a SQLite store: private to its user, refused if it is damaged, shrunk on request."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import struct
from contextlib import closing, suppress
from pathlib import Path

from sqlalchemy.engine import URL

from store.database.failures import named_opening_errors
from store.database.private_files import create_private, data_folder, make_private
from store.database.urls import file_of, is_sqlite, normalised, wait_s
from store.errors import StoreCorrupt

CHECKED_BYTES = 16 << 20
"""Files up to this size are checked whole when they are opened, in 15 ms; `orchestrate doctor`
checks larger ones."""

APPLICATION_ID = 0x6F726368
"""What SQLite files of this program have in their header; "orch" in ASCII."""

MIN_FREE_SHARE = 0.05
"""A file is rewritten if this share of its pages is free; fewer are soon used again."""


logger = logging.getLogger("orchestrate")

_MARK = "This file belongs to the store beside it, which has held runs.\n"

_HEADER = struct.Struct(">16x H 6x I I 60x I")
"""Of a database file: page size, change counter, pages, and the counter for which these hold
(https://www.sqlite.org/fileformat2.html, section 1.3)."""


def lock_of(file: Path) -> Path:
    """The lock file of a store's file; it also says that the store has been created."""
    file = file.resolve()  # one lock, by whichever link the file is named
    return file.with_name(f"{file.name}.lock")


def prepare(file: Path) -> None:
    """Create a store's file, which only its user may read, or check it: it must be whole.

    Raises:
        StoreCorrupt: it is empty though it has held runs, or shorter than its header says.
        OSError: it cannot be created.
    """
    if not create_private(file):
        _require_whole(file)
    elif _size(lock_of(file)):
        logger.warning("%s has held runs, and is gone: a new store is created", file)


def check_pages(url: URL, *, max_bytes: float = CHECKED_BYTES) -> None:
    """Check all pages of a store's file.

    Args:
        max_bytes: of a larger file nothing is read.
    Raises:
        StoreCorrupt: a page is damaged.
        sqlite3.Error: it cannot be read.
    """
    file = file_of(url)
    if not 0 < _size(file) <= max_bytes:
        return
    with closing(sqlite3.connect(file, timeout=wait_s(url))) as connection:
        verdict = connection.execute("PRAGMA quick_check(1)").fetchone()[0]
    if verdict != "ok":
        raise StoreCorrupt(f"sqlite:///{file}", " ".join(verdict.split()))


def opened(file: Path) -> None:
    """A store was opened: note beside its file that it exists, and take others' permissions."""
    make_private(file, *(file.with_name(f"{file.name}-{end}") for end in ("wal", "shm")))
    if file.parent == data_folder():
        make_private(file.parent)
    with suppress(OSError):  # a store that may only be read
        if not _size(lock_of(file)):
            lock_of(file).write_text(_MARK)


def _require_whole(file: Path) -> None:
    size = _size(file)
    if not size:
        if _size(lock_of(file)):
            raise StoreCorrupt(f"sqlite:///{file}", "it is empty, though it has held runs")
        return
    if _size(file.with_name(f"{file.name}-wal")):
        return  # the log may have pages that the file lacks
    with file.open("rb") as opened:
        header = opened.read(_HEADER.size)
    if size < _HEADER.size:  # SQLite takes a file of one byte for a new one
        raise StoreCorrupt(f"sqlite:///{file}", f"it has only {size} bytes")
    page_bytes, counter, pages, counted_at = _HEADER.unpack(header)
    expected = pages * (page_bytes if page_bytes > 1 else 1 << 16)
    if counter == counted_at and size < expected:
        cause = f"it has {size:,} bytes and lacks the last {expected - size:,}"
        raise StoreCorrupt(f"sqlite:///{file}", cause)


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

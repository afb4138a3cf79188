"""The one place where errors of drivers and of the operating system get their names."""

from __future__ import annotations

import errno
import resource
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from traceback import walk_tb

from filelock import Timeout
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from store.errors import (
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreUnreachable,
)
from store.urls import file_of, is_sqlite, shown, wait_s

_NamedError = type[StoreLocked | StoreFull | StoreCorrupt | StoreUnreachable | StoreFailed]

_ROOM_BYTES = 1 << 20  # SQLite calls a write that found no room an I/O error in some places
_FULL_ERRNO = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}

# Primary result codes: https://www.sqlite.org/rescode.html
_SQLITE: dict[int, _NamedError] = {
    sqlite3.SQLITE_BUSY: StoreLocked,
    sqlite3.SQLITE_LOCKED: StoreLocked,
    sqlite3.SQLITE_FULL: StoreFull,
    sqlite3.SQLITE_CORRUPT: StoreCorrupt,
    sqlite3.SQLITE_NOTADB: StoreCorrupt,
    sqlite3.SQLITE_CANTOPEN: StoreUnreachable,
    sqlite3.SQLITE_READONLY: StoreUnreachable,
    sqlite3.SQLITE_PERM: StoreUnreachable,
    sqlite3.SQLITE_IOERR: StoreUnreachable,
}

# SQLSTATE codes and, in two letters, their classes (PostgreSQL's manual, appendix A).
_POSTGRES: dict[str, _NamedError] = {
    "08": StoreUnreachable,  # connection exception
    "28": StoreUnreachable,  # authorization
    "3D000": StoreUnreachable,  # no such database
    "42501": StoreUnreachable,  # privileges
    "25006": StoreUnreachable,  # read-only
    "53100": StoreFull,  # disk full
    "53": StoreUnreachable,  # memory, connections
    "57014": StoreLocked,  # statement timeout
    "57": StoreUnreachable,  # the server shuts down or starts
    "40": StoreLocked,  # deadlock, serialization
    "55P03": StoreLocked,  # lock timeout
    "XX001": StoreCorrupt,
    "XX002": StoreCorrupt,
}


@contextmanager
def named_database_errors(url: URL) -> Iterator[None]:
    """Turn a driver's errors into this package's; leave every other exception alone."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise _named(url, error) from error
    except (LookupError, ValueError, TypeError) as error:
        if not _is_of_a_row(error):
            raise
        raise StoreCorrupt(shown(url), f"a row cannot be read: {error}") from error


@contextmanager
def named_opening_errors(url: URL) -> Iterator[None]:
    """The same while a store is opened, when files, locks and drivers may fail too."""
    try:
        with named_database_errors(url):
            yield
    except Timeout as error:
        cause = f"another process has been preparing it for {wait_s(url):g} s"
        raise StoreLocked(shown(url), cause) from error
    except OSError as error:
        name = StoreFull if error.errno in _FULL_ERRNO else StoreUnreachable
        raise name(shown(url), str(error)) from error
    except ImportError as error:
        cause = f"its driver is not installed ({error}); pip install 'orchestrate-llm[postgres]'"
        raise StoreUnreachable(shown(url), cause) from error


def is_missing_table(error: DBAPIError | sqlite3.Error) -> bool:
    """Whether a query failed because its table does not exist: a database without a schema."""
    cause = _cause(error)
    if isinstance(cause, sqlite3.Error):
        return _sqlite_code(cause) == sqlite3.SQLITE_ERROR
    return getattr(cause, "sqlstate", None) == "42P01"


def is_busy(error: DBAPIError | sqlite3.Error) -> bool:
    """Whether SQLite refused because another connection is at work."""
    cause = _cause(error)
    return isinstance(cause, sqlite3.Error) and _sqlite_code(cause) == sqlite3.SQLITE_BUSY


def _named(url: URL, error: Exception) -> StoreError:
    """The named error for a driver's error; StoreFailed where none fits."""
    if isinstance(error, PoolTimeout):
        cause = f"no connection of this process became free in {wait_s(url):g} s"
        return StoreLocked(shown(url), cause)
    cause_error = _cause(error)
    text = str(cause_error).strip() or type(cause_error).__name__
    if isinstance(cause_error, sqlite3.Error):
        return _named_sqlite(url, _sqlite_code(cause_error), text)
    sqlstate = getattr(cause_error, "sqlstate", None)
    if isinstance(sqlstate, str):
        name = _POSTGRES.get(sqlstate) or _POSTGRES.get(sqlstate[:2], StoreFailed)
        return name(shown(url), text)
    if isinstance(error, OperationalError):  # no SQLSTATE: the server never answered
        return StoreUnreachable(shown(url), text)
    return StoreFailed(shown(url), text)


def _named_sqlite(url: URL, code: int, text: str) -> StoreError:
    """Name a SQLite error by its primary result code."""
    if code == sqlite3.SQLITE_IOERR and _is_out_of_room(url):
        return StoreFull(shown(url), text)
    return _SQLITE.get(code, StoreFailed)(shown(url), text)


def _is_out_of_room(url: URL) -> bool:
    """Whether the disk is full, or a file is as large as this process may make it (ulimit -f)."""
    if not is_sqlite(url):
        return False
    file = file_of(url)
    most_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if shutil.disk_usage(file.parent).free < _ROOM_BYTES:
            return True
        if most_bytes == resource.RLIM_INFINITY:
            return False
        files = [file, file.with_name(f"{file.name}-wal")]
        return any(most_bytes - one.stat().st_size < _ROOM_BYTES for one in files)
    except OSError:
        return False


def _is_of_a_row(error: Exception) -> bool:
    """Whether SQLAlchemy raised it when it read a row: what no column of ours can hold."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(module.startswith("sqlalchemy.engine.") for module in modules)


def _cause(error: Exception) -> BaseException:
    """The driver's own error beneath SQLAlchemy's."""
    if isinstance(error, DBAPIError):
        return error.driver_exception
    return getattr(error, "orig", None) or error


def _sqlite_code(error: sqlite3.Error) -> int:
    """The primary result code; 0 for errors that the Python module itself raised."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF

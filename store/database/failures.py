"""Converts errors of database drivers and of the operating system into errors of this package."""

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

from store.database.urls import file_of, is_sqlite, wait_s, without_password
from store.errors import (
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreUnreachable,
)

_NamedError = type[StoreLocked | StoreFull | StoreCorrupt | StoreUnreachable | StoreFailed]

_MIN_FREE_BYTES = 1 << 20
"""With less free space an I/O error of SQLite counts as a full disk: SQLite reports some writes
that lack space as I/O errors."""

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
    """Convert a driver's errors into this package's; other exceptions pass unchanged."""
    try:
        yield
    except (SQLAlchemyError, sqlite3.Error) as error:
        raise _named(url, error) from error
    except (LookupError, ValueError, TypeError) as error:
        if not _was_raised_by_row(error):
            raise
        raise StoreCorrupt(without_password(url), f"a row cannot be read: {error}") from error


@contextmanager
def named_opening_errors(url: URL) -> Iterator[None]:
    """As `named_database_errors`, also for errors of files, locks and imports during opening."""
    try:
        with named_database_errors(url):
            yield
    except Timeout as error:
        cause = f"another process has been creating or migrating it for {wait_s(url):g} s"
        raise StoreLocked(without_password(url), cause) from error
    except OSError as error:
        error_type = StoreFull if error.errno in _FULL_ERRNO else StoreUnreachable
        raise error_type(without_password(url), str(error)) from error
    except ImportError as error:
        cause = f"its driver is not installed ({error}); pip install 'orchestrate-llm[postgres]'"
        raise StoreUnreachable(without_password(url), cause) from error


def is_missing_table(error: DBAPIError | sqlite3.Error) -> bool:
    """Whether a query failed because its table does not exist, as in a database without schema."""
    cause = _cause(error)
    if isinstance(cause, sqlite3.Error):
        return _sqlite_code(cause) == sqlite3.SQLITE_ERROR
    return getattr(cause, "sqlstate", None) == "42P01"


def is_busy(error: DBAPIError | sqlite3.Error) -> bool:
    """Whether SQLite refused because another connection holds the lock."""
    cause = _cause(error)
    return isinstance(cause, sqlite3.Error) and _sqlite_code(cause) == sqlite3.SQLITE_BUSY


def _named(url: URL, error: Exception) -> StoreError:
    """This package's error for a driver's error; StoreFailed if no other one fits."""
    if isinstance(error, PoolTimeout):
        cause = f"no connection of this process became free in {wait_s(url):g} s"
        return StoreLocked(without_password(url), cause)
    cause_error = _cause(error)
    text = str(cause_error).strip() or type(cause_error).__name__
    if isinstance(cause_error, sqlite3.Error):
        return _named_sqlite(url, _sqlite_code(cause_error), text)
    sqlstate = getattr(cause_error, "sqlstate", None)
    if isinstance(sqlstate, str):
        error_type = _POSTGRES.get(sqlstate) or _POSTGRES.get(sqlstate[:2], StoreFailed)
        return error_type(without_password(url), text)
    if isinstance(error, OperationalError):  # without SQLSTATE: the server did not answer
        return StoreUnreachable(without_password(url), text)
    return StoreFailed(without_password(url), text)


def _named_sqlite(url: URL, code: int, text: str) -> StoreError:
    """This package's error for a primary result code of SQLite."""
    if code == sqlite3.SQLITE_IOERR and _is_out_of_space(url):
        return StoreFull(without_password(url), text)
    return _SQLITE.get(code, StoreFailed)(without_password(url), text)


def _is_out_of_space(url: URL) -> bool:
    """Whether the disk is full, or a file has reached the limit of this process (ulimit -f)."""
    if not is_sqlite(url):
        return False
    file = file_of(url)
    max_bytes, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        if shutil.disk_usage(file.parent).free < _MIN_FREE_BYTES:
            return True
        if max_bytes == resource.RLIM_INFINITY:
            return False
        files = [file, file.with_name(f"{file.name}-wal")]
        return any(max_bytes - each.stat().st_size < _MIN_FREE_BYTES for each in files)
    except OSError:
        return False


def _was_raised_by_row(error: Exception) -> bool:
    """Whether SQLAlchemy raised it while it read a row: a column has a value that is not valid."""
    modules = (frame.f_globals.get("__name__", "") for frame, _ in walk_tb(error.__traceback__))
    return any(module.startswith("sqlalchemy.engine.") for module in modules)


def _cause(error: Exception) -> BaseException:
    """The driver's own error, which SQLAlchemy's error wraps."""
    if isinstance(error, DBAPIError):
        return error.driver_exception
    return getattr(error, "orig", None) or error


def _sqlite_code(error: sqlite3.Error) -> int:
    """The primary result code; 0 for errors that Python's sqlite3 module itself raised."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF

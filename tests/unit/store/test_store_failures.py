"""Errors of database drivers and of the operating system become the right errors of the store."""

from __future__ import annotations

import errno
import sqlite3
import subprocess
import sys

import pytest
from filelock import Timeout
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from store.database.failures import named_database_errors, named_opening_errors
from store.database.urls import normalised
from store.errors import (
    StoreCorrupt,
    StoreError,
    StoreFailed,
    StoreFull,
    StoreLocked,
    StoreUnreachable,
)
from store.session import Store, open_store
from tests.unit.store.store_samples import a_run, a_step

URL = normalised("sqlite:////tmp/store.sqlite")


def sqlite_error(code: int) -> Exception:
    error = sqlite3.OperationalError("the cause")
    error.sqlite_errorcode = code
    return OperationalError("SELECT 1", None, error)


@pytest.mark.parametrize(
    ("code", "error_type"),
    [
        (sqlite3.SQLITE_BUSY, StoreLocked),
        (sqlite3.SQLITE_BUSY_SNAPSHOT, StoreLocked),
        (sqlite3.SQLITE_FULL, StoreFull),
        (sqlite3.SQLITE_CORRUPT_INDEX, StoreCorrupt),
        (sqlite3.SQLITE_NOTADB, StoreCorrupt),
        (sqlite3.SQLITE_CANTOPEN_ISDIR, StoreUnreachable),
        (sqlite3.SQLITE_READONLY_DIRECTORY, StoreUnreachable),
        (sqlite3.SQLITE_IOERR_READ, StoreUnreachable),
        (sqlite3.SQLITE_ERROR, StoreFailed),
        (sqlite3.SQLITE_CONSTRAINT_CHECK, StoreFailed),
    ],
)
def test_a_sqlite_code_becomes_its_error(code: int, error_type: type[StoreError]) -> None:
    with pytest.raises(error_type, match="the cause"), named_database_errors(URL):
        raise sqlite_error(code)


@pytest.mark.parametrize(
    ("sqlstate", "error_type"),
    [
        ("08006", StoreUnreachable),
        ("28P01", StoreUnreachable),
        ("3D000", StoreUnreachable),
        ("42501", StoreUnreachable),
        ("53100", StoreFull),
        ("53300", StoreUnreachable),
        ("40P01", StoreLocked),
        ("40001", StoreLocked),
        ("55P03", StoreLocked),
        ("57014", StoreLocked),
        ("57P01", StoreUnreachable),
        ("XX001", StoreCorrupt),
        ("42703", StoreFailed),
    ],
)
def test_a_postgresql_state_becomes_its_error(sqlstate: str, error_type: type[StoreError]) -> None:
    errors = pytest.importorskip("psycopg.errors", exc_type=ImportError)
    with pytest.raises(error_type), named_database_errors(URL):
        raise OperationalError("SELECT 1", None, errors.lookup(sqlstate)("the cause"))


@pytest.mark.parametrize(
    ("error", "error_type"),
    [
        (OSError(errno.ENOSPC, "no space"), StoreFull),
        (PermissionError(errno.EACCES, "denied"), StoreUnreachable),
        (Timeout("store.lock"), StoreLocked),
        (ModuleNotFoundError("No module named 'psycopg'"), StoreUnreachable),
    ],
)
def test_errors_of_files_locks_and_imports_while_opening_become_store_errors(
    error: Exception, error_type: type[StoreError]
) -> None:
    with pytest.raises(error_type), named_opening_errors(URL):
        raise error


def test_a_timeout_while_waiting_for_a_connection_means_a_locked_store() -> None:
    with pytest.raises(StoreLocked), named_database_errors(URL):
        raise PoolTimeout("no connection")


def test_a_database_error_without_its_own_class_becomes_store_failed() -> None:
    with pytest.raises(StoreFailed, match="duplicate"), named_database_errors(URL):
        raise IntegrityError("INSERT", None, Exception("duplicate"))


def test_an_error_that_is_not_of_the_database_passes_unchanged() -> None:
    error = PermissionError("the block's own")
    with pytest.raises(PermissionError) as raised, named_database_errors(URL):
        raise error
    assert raised.value is error


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE runs SET status = 'levitating'",
        "UPDATE runs SET started_at = 'yesterday'",
        "UPDATE runs SET attributes = '{'",
        "UPDATE steps SET kind = 'dance'",
        "UPDATE steps SET effects = 'none at all'",
        "UPDATE payloads SET encoding = 'rot13'",
    ],
)
async def test_a_row_with_an_invalid_value_means_a_corrupt_store(
    sqlite_url: str, damage: str
) -> None:
    async with await open_store(sqlite_url) as store:
        async with store.transaction() as tx:
            await tx.runs.add(a_run("run-1"))
            await tx.journal.start(a_step())
            name = await tx.payloads.put(b"whole")
        async with store._writer.begin() as connection:
            await connection.execute(text(damage))

        async def read() -> None:
            async with store.reading() as tx:
                await tx.runs.get("run-1")
                await tx.journal.of_run("run-1")
                await tx.payloads.get(name)

        with pytest.raises(StoreCorrupt, match="a row cannot be read"):
            await read()


@pytest.mark.parametrize("error", [KeyError("k"), ValueError("v"), TypeError("t")])
async def test_an_error_of_the_block_itself_does_not_mean_a_corrupt_store(
    sqlite_url: str, error: Exception
) -> None:
    async with await open_store(sqlite_url) as store:

        async def fail() -> None:
            async with store.reading() as tx:
                await tx.runs.newest()
                raise error

        with pytest.raises(type(error)) as raised:
            await fail()
        assert raised.value is error


WRITES_TOO_MUCH = """
import asyncio, os, resource, sys
from store.errors import StoreFull
from store.session import open_store

async def main() -> None:
    async with await open_store(sys.argv[1]) as store:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4 << 20, 4 << 20))
        try:
            while True:
                async with store.transaction() as tx:
                    await tx.payloads.put(os.urandom(200_000))
        except StoreFull as error:
            print(error)

asyncio.run(main())
"""


@pytest.mark.usefixtures("subprocesses")
def test_a_limit_on_the_size_of_files_means_a_full_store(sqlite_url: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WRITES_TOO_MUCH, sqlite_url],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "Free disk space" in done.stdout, done.stderr


async def test_an_error_does_not_contain_the_values_to_be_stored(store: Store) -> None:
    with pytest.raises(StoreError) as refused:
        async with store.reading() as tx:
            await tx.runs.add(a_run(flow="a secret prompt"))
    assert "a secret prompt" not in f"{refused.value} {refused.value.__cause__}"


@pytest.mark.usefixtures("subprocesses")
def test_the_error_for_a_missing_driver_names_the_extra_to_install() -> None:
    program = (
        "import asyncio, sys\n"
        "sys.modules['psycopg'] = None\n"
        "from store.errors import StoreUnreachable\n"
        "from store.session import open_store\n"
        "try:\n"
        "    asyncio.run(open_store('postgresql://user@host/name'))\n"
        "except StoreUnreachable as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "orchestrate-llm[postgres]" in done.stdout

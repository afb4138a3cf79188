"""Opening a store, its transactions, and their behaviour after errors and cancellation."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from store.errors import (
    RunNotFound,
    StoreClosed,
    StoreCorrupt,
    StoreError,
    StoreLocked,
    StoreUnreachable,
)
from store.session import Store, open_store
from tests.unit.store.store_samples import a_run

UNPRIVILEGED_USER = 65534


async def ids(store: Store) -> list[str]:
    async with store.reading() as tx:
        return [run.id for run in await tx.runs.newest()]


async def test_a_sqlite_store_uses_wal_and_foreign_keys(sqlite_url: str, tmp_path: Path) -> None:
    async with await open_store(sqlite_url) as store:
        for engine in (store._writer, store._reader):
            async with engine.begin() as connection:
                await connection.execute(text("SELECT * FROM runs"))  # reads the file's mode
                pragmas = {
                    name: await connection.scalar(text(f"PRAGMA {name}"))
                    for name in ("journal_mode", "synchronous", "foreign_keys")
                }
            assert pragmas == {"journal_mode": "wal", "synchronous": 1, "foreign_keys": 1}
        assert (tmp_path / "store.sqlite-wal").is_file()


@pytest.mark.parametrize("scheme", ["sqlite", "sqlite+pysqlite"])
async def test_a_store_is_created_with_its_folders(tmp_path: Path, scheme: str) -> None:
    file = tmp_path / "a folder" / "deeper" / "store.sqlite"
    async with await open_store(f"{scheme}:///{file}"):
        assert file.is_file()


async def test_a_relative_path_is_resolved_when_the_store_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with await open_store("sqlite:///store.sqlite") as store:
        monkeypatch.chdir("/")
        async with store.transaction() as tx:
            await tx.runs.add(a_run())
        assert await ids(store) == ["run-1"]
    assert (tmp_path / "store.sqlite").is_file()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "not a url",
        "/tmp/store.sqlite",
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:///file:store?mode=memory&uri=true",
        "sqlite:///store.sqlite?timeout=soon",
        "sqlite+other:///store.sqlite",
        "mysql://user:secret@host/name",
        "postgresql+asyncpg://user:secret@host/name",
        "postgresql://user:secret@host:port/name",
        "postgresql://user:secret@127.0.0.1:1/name",
    ],
)
async def test_an_unusable_url_is_refused_and_its_password_is_not_shown(url: str) -> None:
    with pytest.raises(StoreUnreachable) as refused:
        await open_store(url)
    assert "secret" not in str(refused.value)


async def test_a_path_that_cannot_be_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("text")
    for path in (tmp_path, tmp_path / "file" / "store.sqlite", Path("/proc/no/store.sqlite")):
        with pytest.raises(StoreUnreachable):
            await open_store(f"sqlite:///{path}")


@pytest.fixture
def foreign_folder() -> Iterator[Path]:
    """A folder for `make_read_only`, which makes root an unprivileged user until the test ends."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "foreign"
        folder.mkdir()
        Path(name).chmod(0o755)
        is_root = os.geteuid() == 0
        yield folder
        if is_root:
            os.seteuid(0)
        folder.chmod(0o755)


def make_read_only(folder: Path) -> None:
    for file in folder.iterdir():
        file.chmod(0o444)
    folder.chmod(0o555)
    if os.geteuid() == 0:
        os.seteuid(UNPRIVILEGED_USER)


async def test_a_store_cannot_be_created_in_a_read_only_folder(foreign_folder: Path) -> None:
    make_read_only(foreign_folder)
    for path in ("store.sqlite", "new/store.sqlite"):
        with pytest.raises(StoreUnreachable):
            await open_store(f"sqlite:///{foreign_folder / path}")


async def test_a_read_only_store_cannot_be_written(foreign_folder: Path) -> None:
    url = f"sqlite:///{foreign_folder / 'store.sqlite'}"
    async with await open_store(url):
        pass
    make_read_only(foreign_folder)
    with pytest.raises(StoreUnreachable):
        async with await open_store(url) as store, store.transaction() as tx:
            await tx.runs.add(a_run())


@pytest.mark.parametrize("content", [b"no database at all, just text" * 50, b"\x00" * 5000])
async def test_a_file_that_is_not_a_database_is_corrupt(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "store.sqlite"
    file.write_bytes(content)
    with pytest.raises(StoreCorrupt):
        await open_store(f"sqlite:///{file}")
    assert file.read_bytes() == content


async def test_a_partly_overwritten_database_is_corrupt(sqlite_url: str, tmp_path: Path) -> None:
    async with await open_store(sqlite_url) as store, store.transaction() as tx:
        await tx.runs.add(a_run())
    file = tmp_path / "store.sqlite"
    whole = file.read_bytes()
    file.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))
    with pytest.raises(StoreCorrupt):
        async with await open_store(sqlite_url) as store, store.reading() as tx:
            await tx.runs.get("run-1")


async def test_a_lock_held_past_the_timeout_raises_store_locked_for_writers_only(
    sqlite_url: str, tmp_path: Path
) -> None:
    async with await open_store(sqlite_url) as store:
        with closing(sqlite3.connect(tmp_path / "store.sqlite")) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreLocked):
                async with store.transaction():
                    pass
            assert await ids(store) == []  # reading still works
            other.rollback()
        async with store.transaction() as tx:
            await tx.runs.add(a_run())
        assert await ids(store) == ["run-1"]


async def test_a_transaction_within_another_raises_store_locked(sqlite_url: str) -> None:
    async with await open_store(sqlite_url) as store:
        async with store.transaction() as outer:
            with pytest.raises(StoreLocked):
                async with store.transaction():
                    pass
            await outer.runs.add(a_run())
        assert await ids(store) == ["run-1"]


async def add_and_raise(store: Store, error: BaseException) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.payloads.put(b"data")
        raise error


async def test_an_exception_rolls_the_transaction_back_and_passes_unchanged(store: Store) -> None:
    for error in (RuntimeError("mine"), OSError(28, "mine too"), RunNotFound("x"), SystemExit(3)):
        with pytest.raises(type(error)) as raised:
            await add_and_raise(store, error)
        assert raised.value is error
    assert await ids(store) == []


async def test_a_cancelled_transaction_is_rolled_back_and_releases_the_store(store: Store) -> None:
    added = asyncio.Event()

    async def add_and_wait() -> None:
        async with store.transaction() as tx:
            await tx.runs.add(a_run("cancelled"))
            added.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(add_and_wait())
    await added.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with store.transaction() as tx:
        await tx.runs.add(a_run("next"))
    assert await ids(store) == ["next"]


@pytest.mark.slow
async def test_a_transaction_cancelled_at_any_await_is_committed_as_a_whole_or_not_at_all(
    store: Store,
) -> None:
    """Cancelled after each number of iterations of the event loop; the store stays usable."""
    committed = set()

    async def add_two(number: int) -> None:
        async with store.transaction() as tx:
            await tx.runs.add(a_run(f"{number}-a"))
            await tx.runs.add(a_run(f"{number}-b"))
        committed.add(f"{number}-a")

    outcomes = []  # keeps the cancellations' tracebacks, and the objects in them, alive
    for num_iterations in range(100):
        task = asyncio.create_task(add_two(num_iterations))
        for iteration in range(num_iterations):
            await asyncio.sleep(0 if iteration % 3 else 0.0001)
        task.cancel()
        outcomes += await asyncio.gather(task, return_exceptions=True)
        await add_two(1000 + num_iterations)
    assert {type(outcome) for outcome in outcomes} <= {asyncio.CancelledError, type(None)}
    stored = set(await ids(store))
    assert committed <= stored
    assert stored == {run[:-1] + half for run in stored for half in "ab"}


async def test_a_read_transaction_sees_a_snapshot_and_never_waits_for_a_writer(
    store: Store,
) -> None:
    async with store.reading() as reading:
        assert list(await reading.runs.newest()) == []
        async with store.transaction() as tx:
            await tx.runs.add(a_run())
            assert list(await reading.runs.newest()) == []
        assert list(await reading.runs.newest()) == []
    assert await ids(store) == ["run-1"]


async def test_a_read_transaction_cannot_write(store: Store) -> None:
    with pytest.raises(StoreError):
        async with store.reading() as tx:
            await tx.runs.add(a_run())
    assert await ids(store) == []


async def test_concurrent_tasks_of_one_process_can_all_write(store: Store) -> None:
    async def add(number: int) -> None:
        async with store.transaction() as tx:
            assert len(await tx.runs.newest()) >= 0
            await tx.runs.add(a_run(f"run-{number}"))

    await asyncio.gather(*(add(number) for number in range(50)))
    assert len(await ids(store)) == 50


async def test_a_closed_store_raises_store_closed(store: Store) -> None:
    await store.close()
    with pytest.raises(StoreClosed):
        store.transaction()
    with pytest.raises(StoreClosed):
        store.reading()
    await store.close()


async def test_the_url_of_a_sqlite_store_is_the_one_it_was_opened_with(sqlite_url: str) -> None:
    async with await open_store(sqlite_url) as store:
        assert store.url == sqlite_url

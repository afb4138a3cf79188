"""A SQLite store's file: private, and refused if it is damaged."""

from __future__ import annotations

import logging
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from store.errors import StoreCorrupt, StoreLocked, StoreUnreachable
from store.session import open_store
from tests.unit.store.store_samples import a_run


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


async def fill(file: Path) -> None:
    async with await open_store(f"sqlite:///{file}") as store, store.transaction() as tx:
        await tx.runs.add(a_run())


async def test_the_files_of_a_store_can_be_read_by_their_user_only(tmp_path: Path) -> None:
    file = tmp_path / "new folder" / "runs.db"
    former = os.umask(0)
    try:
        async with await open_store(f"sqlite:///{file}") as store, store.transaction() as tx:
            await tx.runs.add(a_run())
            modes = {each.name: mode(each) for each in file.parent.iterdir()}
    finally:
        os.umask(former)
    assert modes.keys() >= {"runs.db", "runs.db-wal"}
    assert {name: each & 0o077 for name, each in modes.items()} == dict.fromkeys(modes, 0)
    assert mode(file.parent) == 0o700


async def test_an_existing_file_is_made_private_with_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "runs.db"
    await fill(file)
    file.chmod(0o644)
    with caplog.at_level(logging.WARNING, logger="orchestrate"):
        async with await open_store(f"sqlite:///{file}"):
            pass
    assert mode(file) == 0o600
    assert "now it is private" in caplog.text


@pytest.mark.parametrize("kept", [0, 1, 99, 4096, 0.5, 0.99])
async def test_a_file_that_was_cut_short_is_damaged_and_not_new(
    tmp_path: Path, kept: float
) -> None:
    file = tmp_path / "runs.db"
    await fill(file)
    size = file.stat().st_size
    os.truncate(file, kept if isinstance(kept, int) else int(kept * size))
    with pytest.raises(StoreCorrupt):
        await open_store(f"sqlite:///{file}")


async def test_an_empty_file_that_never_held_runs_is_a_new_store(tmp_path: Path) -> None:
    (tmp_path / "runs.db").touch()
    await fill(tmp_path / "runs.db")


async def test_a_damaged_page_is_noticed_when_the_store_is_opened(tmp_path: Path) -> None:
    file = tmp_path / "runs.db"
    await fill(file)
    with file.open("r+b") as opened:
        opened.seek(4096 * 8)  # the first page of the calls
        opened.write(b"\xa5" * 4096)
    with pytest.raises(StoreCorrupt, match=r"runs\.db is damaged: .*[Pp]age"):
        await open_store(f"sqlite:///{file}")


async def test_another_programs_database_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "places.sqlite"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    file.chmod(0o644)
    before = file.read_bytes()
    with pytest.raises(StoreUnreachable, match="another program's"):
        await open_store(f"sqlite:///{file}")
    assert file.read_bytes() == before
    assert mode(file) == 0o644


async def test_the_folder_of_the_default_store_is_made_private(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    folder, elsewhere = tmp_path / "orchestrate", tmp_path / "elsewhere"
    for each in (folder, elsewhere):
        each.mkdir(mode=0o755)
        async with await open_store(f"sqlite:///{each / 'orchestrate.db'}"):
            pass
    assert mode(folder) == 0o700
    assert mode(elsewhere) == 0o755  # a folder of the user


async def test_an_empty_database_of_another_program_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.db"
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("PRAGMA application_id = 1234")
        connection.execute("VACUUM")
    with pytest.raises(StoreUnreachable, match="another program's"):
        await open_store(f"sqlite:///{file}")


async def test_a_store_that_another_program_has_locked_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs.db"
    await fill(file)
    connect, waits_s = sqlite3.connect, list[float]()

    def noting(*args: Any, timeout: float = 5.0, **kwargs: Any) -> sqlite3.Connection:
        waits_s.append(timeout)
        return connect(*args, timeout=timeout, **kwargs)

    monkeypatch.setattr("store.database.sqlite_file.sqlite3.connect", noting)
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA locking_mode = EXCLUSIVE")
        connection.execute("BEGIN EXCLUSIVE")
        with pytest.raises(StoreLocked):
            await open_store(f"sqlite:///{file}?timeout=0.2")
    assert 0.2 in waits_s
    assert 5.0 not in waits_s[1:]  # the default of Python's driver; the first is this test's own


async def test_a_store_that_was_deleted_is_missed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "runs.db"
    await fill(file)
    file.unlink()
    with caplog.at_level(logging.WARNING, logger="orchestrate"):
        await fill(file)
    assert "is gone" in caplog.text

"""A SQLite store's file: private, and refused if it is damaged."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from store.errors import StoreCorrupt
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

"""Without disk space: StoreFull, nothing is written in part, and writes work once space is free."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text

from store.errors import StoreFull
from store.session import Store, open_store
from tests.unit.store.store_samples import a_run

NOISE = random.Random(0).randbytes(1 << 20)


async def fill(store: Store) -> list[str]:
    """Store payloads until there is no space; returns the hashes of those that were committed."""
    committed: list[str] = []
    try:
        while True:
            number = len(committed)
            async with store.transaction() as tx:
                await tx.runs.add(a_run(f"run-{number}"))
                name = await tx.payloads.put(NOISE[number : number + 20_000])
            committed.append(name)
    except StoreFull:
        return committed


async def assert_holds(store: Store, committed: list[str]) -> None:
    async with store.reading() as tx:
        assert len(await tx.runs.newest()) == len(committed)
        for number, name in enumerate(committed):
            assert await tx.payloads.get(name) == NOISE[number : number + 20_000]


async def test_a_full_database_keeps_all_committed_transactions(sqlite_url: str) -> None:
    async with await open_store(sqlite_url) as store:
        async with store._writer.begin() as connection:
            await connection.execute(text("PRAGMA max_page_count=200"))
        committed = await fill(store)
        assert committed
        await assert_holds(store, committed)
        async with store._writer.begin() as connection:
            await connection.execute(text("PRAGMA max_page_count=100000"))
        async with store.transaction() as tx:
            await tx.payloads.put(b"there is room again")


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("only root may mount a small file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.usefixtures("subprocesses")
async def test_a_full_disk_keeps_all_committed_transactions(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(400_000))
    async with await open_store(f"sqlite:///{small_disk / 'store.sqlite'}") as store:
        committed = await fill(store)
        assert committed
        ballast.unlink()
        await assert_holds(store, committed)
        async with store.transaction() as tx:
            await tx.payloads.put(b"there is room again")


@pytest.mark.usefixtures("subprocesses")
async def test_opening_a_store_on_a_full_disk_raises_store_full(small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes((2 << 20) - 16_384))
    with pytest.raises(StoreFull):
        await open_store(f"sqlite:///{small_disk / 'store.sqlite'}")

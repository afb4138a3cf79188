"""A file's room: given back where there is much of it, and never at the cost of what is stored."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from store.errors import StoreLocked, StoreUnreachable
from store.session import open_store
from store.space import reclaim, stored_bytes
from tests.unit.store.store_samples import NOON, a_run

NOISE = random.Random(0).randbytes(2_000_000)


async def make_room(url: str, *, part: int) -> str:
    """Store two payloads, and remove the first, that many bytes; returns the other's hash."""
    async with await open_store(url) as store, store.transaction() as tx:
        await tx.payloads.put(NOISE[:part])
        kept = await tx.payloads.put(NOISE[part:])
        await tx.runs.add(a_run(input_payload=kept))
        await tx.retention.remove(ended_before=NOON, now=NOON)
    return kept


async def bytes_of(url: str, name: str) -> bytes:
    async with await open_store(url) as store, store.reading() as tx:
        return await tx.payloads.get(name)


async def test_what_was_removed_gives_its_room_back(sqlite_url: str) -> None:
    part = 1_500_000
    kept = await make_room(sqlite_url, part=part)
    before = stored_bytes(sqlite_url)
    await reclaim(sqlite_url)
    after = stored_bytes(sqlite_url)
    assert before is not None
    assert after is not None
    assert before - after > part
    assert await bytes_of(sqlite_url, kept) == NOISE[part:]


async def test_a_file_with_little_free_room_is_left_as_it_is(
    sqlite_url: str, tmp_path: Path
) -> None:
    await make_room(sqlite_url, part=20_000)
    before = (tmp_path / "store.sqlite").read_bytes()
    await reclaim(sqlite_url)
    assert (tmp_path / "store.sqlite").read_bytes() == before


async def test_who_reads_meanwhile_is_not_disturbed(sqlite_url: str) -> None:
    part = 1_500_000
    kept = await make_room(sqlite_url, part=part)
    async with await open_store(sqlite_url) as store, store.reading() as tx:
        assert (await tx.payloads.describe(kept)).size == len(NOISE) - part
        await reclaim(sqlite_url)
        assert await tx.payloads.get(kept) == NOISE[part:]
    assert await bytes_of(sqlite_url, kept) == NOISE[part:]


async def test_another_writer_is_told_of_and_nothing_is_lost(
    sqlite_url: str, tmp_path: Path
) -> None:
    kept = await make_room(sqlite_url, part=1_500_000)
    with closing(sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLocked):
            await reclaim(sqlite_url)
    assert await bytes_of(sqlite_url, kept) == NOISE[1_500_000:]


def test_a_store_that_is_not_there_takes_no_room(sqlite_url: str) -> None:
    assert stored_bytes(sqlite_url) == 0


def test_a_server_sees_to_its_own_room() -> None:
    url = "postgresql://nobody@nowhere/runs"
    assert stored_bytes(url) is None
    asyncio.run(reclaim(url))


def test_a_url_that_is_none_has_no_room() -> None:
    with pytest.raises(StoreUnreachable):
        stored_bytes("nonsense")

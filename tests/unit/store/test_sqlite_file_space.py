"""Disk space: many free pages are returned to the file system, and no stored data is lost."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from store.database.sqlite_file import reclaim, stored_bytes
from store.errors import StoreLocked, StoreUnreachable
from store.session import open_store
from tests.unit.store.store_samples import NOON, a_run

NOISE = random.Random(0).randbytes(2_000_000)


async def free_space(url: str, *, num_bytes: int) -> str:
    """Store two payloads and remove the first, of `num_bytes`; returns the other's hash."""
    async with await open_store(url) as store, store.transaction() as tx:
        await tx.payloads.put(NOISE[:num_bytes])
        kept = await tx.payloads.put(NOISE[num_bytes:])
        await tx.runs.add(a_run(input_payload=kept))
        await tx.retention.remove(ended_before=NOON, now=NOON)
    return kept


async def bytes_of(url: str, name: str) -> bytes:
    async with await open_store(url) as store, store.reading() as tx:
        return await tx.payloads.get(name)


async def test_the_space_of_removed_payloads_is_reclaimed(sqlite_url: str) -> None:
    num_bytes = 1_500_000
    kept = await free_space(sqlite_url, num_bytes=num_bytes)
    before = stored_bytes(sqlite_url)
    await reclaim(sqlite_url)
    after = stored_bytes(sqlite_url)
    assert before is not None
    assert after is not None
    assert before - after > num_bytes
    assert await bytes_of(sqlite_url, kept) == NOISE[num_bytes:]


async def test_a_file_with_little_free_space_is_not_rewritten(
    sqlite_url: str, tmp_path: Path
) -> None:
    await free_space(sqlite_url, num_bytes=20_000)
    before = (tmp_path / "store.sqlite").read_bytes()
    await reclaim(sqlite_url)
    assert (tmp_path / "store.sqlite").read_bytes() == before


async def test_a_read_transaction_continues_while_space_is_reclaimed(sqlite_url: str) -> None:
    num_bytes = 1_500_000
    kept = await free_space(sqlite_url, num_bytes=num_bytes)
    async with await open_store(sqlite_url) as store, store.reading() as tx:
        assert (await tx.payloads.describe(kept)).size == len(NOISE) - num_bytes
        await reclaim(sqlite_url)
        assert await tx.payloads.get(kept) == NOISE[num_bytes:]
    assert await bytes_of(sqlite_url, kept) == NOISE[num_bytes:]


async def test_reclaiming_beside_another_writer_raises_store_locked_and_loses_nothing(
    sqlite_url: str, tmp_path: Path
) -> None:
    kept = await free_space(sqlite_url, num_bytes=1_500_000)
    with closing(sqlite3.connect(tmp_path / "store.sqlite", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreLocked):
            await reclaim(sqlite_url)
    assert await bytes_of(sqlite_url, kept) == NOISE[1_500_000:]


def test_a_store_that_does_not_exist_takes_no_space(sqlite_url: str) -> None:
    assert stored_bytes(sqlite_url) == 0


def test_the_space_of_a_postgresql_store_is_neither_measured_nor_reclaimed() -> None:
    url = "postgresql://user@nowhere/runs"
    assert stored_bytes(url) is None
    asyncio.run(reclaim(url))


def test_the_space_of_a_malformed_url_is_refused() -> None:
    with pytest.raises(StoreUnreachable):
        stored_bytes("nonsense")

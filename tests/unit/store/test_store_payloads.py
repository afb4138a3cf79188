"""Payloads: the same bytes are stored once, and read as they were stored or not at all."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, event, select, update

from store.chunks import MAX_BYTES, MIN_BYTES, split_into_chunks
from store.errors import PayloadMissing, StoreCorrupt
from store.models import Payload
from store.payloads import decode_chunk_ids, encode_chunk_ids
from store.records import Encoding, PayloadRef
from store.session import Store, open_store

NOISE = random.Random(0).randbytes(300_000)
TEXT = b"the quick brown fox " * 20_000


@pytest.mark.parametrize("data", [b"", b"x", b"\x00\xff" * 9, TEXT[:99], TEXT, NOISE])
async def test_bytes_are_read_by_their_blake3_hash(store: Store, data: bytes) -> None:
    async with store.transaction() as tx:
        name = await tx.payloads.put(data, media_type="text/plain")
    assert name == blake3(data).hexdigest()
    async with store.reading() as tx:
        assert await tx.payloads.get(name) == data
        assert await tx.payloads.describe(name) == PayloadRef(name, len(data), "text/plain")


async def rows_of(store: Store) -> dict[str, tuple[Encoding, int]]:
    """Hash -> encoding and stored bytes, for every row."""
    async with store._reader.begin() as connection:
        rows = await connection.execute(select(Payload.hash, Payload.encoding, Payload.data))
        return {row.hash: (row.encoding, len(row.data)) for row in rows}


@pytest.mark.parametrize("data", [TEXT[:MAX_BYTES], TEXT, NOISE])
async def test_storing_the_same_bytes_again_adds_no_rows(store: Store, data: bytes) -> None:
    async with store.transaction() as tx:
        await tx.payloads.put(data)
    once = await rows_of(store)
    for _ in range(2):
        async with store.transaction() as tx:
            await tx.payloads.put(data)
            await tx.payloads.put(data, media_type="text/other")
    assert await rows_of(store) == once
    assert (len(once) == 1) == (len(data) <= MAX_BYTES)


async def test_bytes_are_compressed_only_if_that_is_smaller(store: Store) -> None:
    small = TEXT[:MAX_BYTES], NOISE[:MAX_BYTES]
    async with store.transaction() as tx:
        text, noise = [await tx.payloads.put(data) for data in small]
    rows = await rows_of(store)
    assert rows[noise] == (Encoding.IDENTITY, MAX_BYTES)
    encoding, size = rows[text]
    assert encoding is Encoding.ZLIB
    assert size < MAX_BYTES / 10


async def test_other_tasks_run_while_large_payloads_are_stored_or_read(
    sqlite_url: str,
) -> None:
    """They run between two statements, and no statement has many chunks."""
    data = random.Random(2).randbytes(3_000_000)
    ticks = [0]
    statements: list[tuple[int, int]] = []  # (tick, number of parameters)

    def record(_c: object, _cursor: object, _s: str, parameters: Any, *_: object) -> None:
        statements.append((ticks[0], len(parameters)))

    async def tick() -> None:
        while True:
            ticks[0] += 1
            await asyncio.sleep(0)

    def check_ticks() -> None:
        at_ticks, num_chunks = [at for at, _ in statements], [num for _, num in statements]
        large = [at for at, num in zip(at_ticks, num_chunks, strict=True) if num > 9]
        assert len(large) >= len(list(split_into_chunks(data))) / 500
        assert max(num_chunks) <= 500
        assert len({*large}) >= len(large) / 2  # a batch is stored and its ids read in one tick
        statements.clear()

    async with await open_store(sqlite_url) as store:
        for engine in (store._writer, store._reader):
            event.listen(engine._engine, "before_cursor_execute", record)  # type: ignore[attr-defined]
        ticking = asyncio.create_task(tick())
        async with store.transaction() as tx:
            name = await tx.payloads.put(data)
        check_ticks()
        async with store.reading() as tx:
            assert await tx.payloads.get(name) == data
        check_ticks()
        ticking.cancel()


@pytest.mark.parametrize("noise", [NOISE, random.Random(1).randbytes(3_000_000)])
async def test_versions_of_large_bytes_share_their_chunks(store: Store, noise: bytes) -> None:
    middle = len(noise) // 2
    versions = [
        noise,
        noise + b"appended",
        b"put before" + noise,
        noise[:middle] + b"put in between" + noise[middle:],
    ]
    async with store.transaction() as tx:
        await tx.payloads.put(versions[0])
    before = sum(size for _, size in (await rows_of(store)).values())
    async with store.transaction() as tx:
        names = [await tx.payloads.put(data) for data in versions]
    after = sum(size for _, size in (await rows_of(store)).values())
    assert after - before < 4 * 4 * MAX_BYTES + 0.1 * len(noise)
    async with store.reading() as tx:
        for name, data in zip(names, versions, strict=True):
            assert await tx.payloads.get(name) == data


@given(st.binary(max_size=20_000), st.integers(0, 20_000))
def test_chunks_are_the_bytes_in_order_and_have_their_sizes(data: bytes, repeat: int) -> None:
    whole = data + data[:100] * (repeat // 100)
    chunks = list(split_into_chunks(whole))
    assert b"".join(chunks) == whole
    assert all(MIN_BYTES <= len(chunk) <= MAX_BYTES for chunk in chunks[:-1])


def test_the_chunks_of_known_bytes_never_change() -> None:
    """Otherwise a later version would store the chunks of an earlier one again."""
    sizes = [len(chunk) for chunk in split_into_chunks(NOISE)]
    assert (len(sizes), sizes[:6]) == (245, [2405, 5942, 870, 1050, 621, 552])


@given(st.lists(st.integers(1, 2**40), max_size=300))
def test_chunk_ids_are_decoded_as_they_were_encoded(ids: list[int]) -> None:
    assert decode_chunk_ids(encode_chunk_ids(ids), MIN_BYTES * len(ids)) == ids


@given(st.lists(st.integers(1, 2**40), min_size=3, max_size=300))
def test_a_list_of_more_chunks_than_the_size_allows_is_damaged(ids: list[int]) -> None:
    with pytest.raises(ValueError, match="damaged"):
        decode_chunk_ids(encode_chunk_ids(ids), MIN_BYTES * (len(ids) - 1) - 1)


def test_consecutive_chunk_ids_take_little_space() -> None:
    assert len(encode_chunk_ids(range(5_000, 6_000))) < 100


async def test_a_payload_without_one_of_its_chunks_is_corrupt(store: Store) -> None:
    async with store.transaction() as tx:
        name = await tx.payloads.put(NOISE)
    async with store._writer.begin() as connection:
        await connection.execute(
            delete(Payload).where(Payload.hash == blake3(_a_chunk()).hexdigest())
        )
    with pytest.raises(StoreCorrupt, match=name):
        async with store.reading() as tx:
            await tx.payloads.get(name)


def _a_chunk() -> bytes:
    return list(split_into_chunks(NOISE))[3]


@pytest.mark.parametrize("damage", [b"", b"other bytes", NOISE[:50], TEXT])
@pytest.mark.parametrize("data", [b"small", TEXT])
async def test_damaged_bytes_are_never_returned(store: Store, data: bytes, damage: bytes) -> None:
    async with store.transaction() as tx:
        name = await tx.payloads.put(data)
    async with store._writer.begin() as connection:
        damaged = damage if damage != data else data[::-1]
        await connection.execute(update(Payload).values(data=damaged))
    with pytest.raises(StoreCorrupt, match=name):
        async with store.reading() as tx:
            await tx.payloads.get(name)


async def test_reading_a_missing_payload_raises_payload_missing(store: Store) -> None:
    async with store.reading() as tx:
        with pytest.raises(PayloadMissing):
            await tx.payloads.get("feed")
        with pytest.raises(PayloadMissing):
            await tx.payloads.describe("feed")

"""Payloads: the same bytes once, and never other bytes than were put."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import delete, event, select, update

from store.chunks import LEAST_BYTES, MOST_BYTES, pieces
from store.errors import PayloadMissing, StoreCorrupt
from store.models import Payload
from store.payloads import listed, numbers_in
from store.records import Encoding, PayloadRef
from store.session import Store, open_store

NOISE = random.Random(0).randbytes(300_000)
TEXT = b"the quick brown fox " * 20_000


@pytest.mark.parametrize("data", [b"", b"x", b"\x00\xff" * 9, TEXT[:99], TEXT, NOISE])
async def test_bytes_come_back_under_their_blake3_hash(store: Store, data: bytes) -> None:
    async with store.transaction() as tx:
        name = await tx.payloads.put(data, media_type="text/plain")
    assert name == blake3(data).hexdigest()
    async with store.reading() as tx:
        assert await tx.payloads.get(name) == data
        assert await tx.payloads.describe(name) == PayloadRef(name, len(data), "text/plain")


async def rows_of(store: Store) -> dict[str, tuple[Encoding, int]]:
    """Encoding and stored bytes of every row, by hash."""
    async with store._reader.begin() as connection:
        rows = await connection.execute(select(Payload.hash, Payload.encoding, Payload.data))
        return {row.hash: (row.encoding, len(row.data)) for row in rows}


@pytest.mark.parametrize("data", [TEXT[:MOST_BYTES], TEXT, NOISE])
async def test_the_same_bytes_take_their_rows_once(store: Store, data: bytes) -> None:
    async with store.transaction() as tx:
        await tx.payloads.put(data)
    once = await rows_of(store)
    for _ in range(2):
        async with store.transaction() as tx:
            await tx.payloads.put(data)
            await tx.payloads.put(data, media_type="text/other")
    assert await rows_of(store) == once
    assert (len(once) == 1) == (len(data) <= MOST_BYTES)


async def test_bytes_are_compressed_only_where_that_is_smaller(store: Store) -> None:
    small = TEXT[:MOST_BYTES], NOISE[:MOST_BYTES]
    async with store.transaction() as tx:
        text, noise = [await tx.payloads.put(data) for data in small]
    stored = await rows_of(store)
    assert stored[noise] == (Encoding.IDENTITY, MOST_BYTES)
    encoding, size = stored[text]
    assert encoding is Encoding.ZLIB
    assert size < MOST_BYTES / 10


async def test_while_large_payloads_are_put_or_read_others_have_their_turns(
    sqlite_url: str,
) -> None:
    """Between two statements, of which none has many pieces."""
    data = random.Random(2).randbytes(3_000_000)
    turns = [0]
    seen: list[tuple[int, int]] = []

    def note(_c: object, _cursor: object, _s: str, parameters: Any, *_: object) -> None:
        seen.append((turns[0], len(parameters)))

    async def others() -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    def no_turn_is_missed() -> None:
        statements, pieces_in_each = [turn for turn, _ in seen], [num for _, num in seen]
        many = [turn for turn, num in zip(statements, pieces_in_each, strict=True) if num > 9]
        assert len(many) >= len(list(pieces(data))) / 500
        assert max(pieces_in_each) <= 500
        assert len({*many}) >= len(many) / 2  # a batch is stored and its numbers read in one turn
        seen.clear()

    async with await open_store(sqlite_url) as store:
        for engine in (store._writer, store._reader):
            event.listen(engine._engine, "before_cursor_execute", note)  # type: ignore[attr-defined]
        ticking = asyncio.create_task(others())
        async with store.transaction() as tx:
            name = await tx.payloads.put(data)
        no_turn_is_missed()
        async with store.reading() as tx:
            assert await tx.payloads.get(name) == data
        no_turn_is_missed()
        ticking.cancel()


@pytest.mark.parametrize("noise", [NOISE, random.Random(1).randbytes(3_000_000)])
async def test_bytes_that_grow_or_change_share_their_pieces(store: Store, noise: bytes) -> None:
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
    assert after - before < 4 * 4 * MOST_BYTES + 0.1 * len(noise)
    async with store.reading() as tx:
        for name, data in zip(names, versions, strict=True):
            assert await tx.payloads.get(name) == data


@given(st.binary(max_size=20_000), st.integers(0, 20_000))
def test_pieces_are_the_bytes_and_have_their_sizes(data: bytes, repeat: int) -> None:
    whole = data + data[:100] * (repeat // 100)
    cut = list(pieces(whole))
    assert b"".join(cut) == whole
    assert all(LEAST_BYTES <= len(piece) <= MOST_BYTES for piece in cut[:-1])


def test_bytes_are_cut_as_they_always_were() -> None:
    """Else what is stored would not be found again by a later version."""
    sizes = [len(piece) for piece in pieces(NOISE)]
    assert (len(sizes), sizes[:6]) == (245, [2405, 5942, 870, 1050, 621, 552])


@given(st.lists(st.integers(1, 2**40), max_size=300))
def test_numbers_of_pieces_come_back_as_they_were_listed(numbers: list[int]) -> None:
    assert numbers_in(listed(numbers), LEAST_BYTES * len(numbers)) == numbers


@given(st.lists(st.integers(1, 2**40), min_size=3, max_size=300))
def test_a_list_of_more_pieces_than_there_can_be_is_damaged(numbers: list[int]) -> None:
    with pytest.raises(ValueError, match="damaged"):
        numbers_in(listed(numbers), LEAST_BYTES * (len(numbers) - 1) - 1)


def test_numbers_that_follow_one_another_take_little_room() -> None:
    assert len(listed(range(5_000, 6_000))) < 100


async def test_a_payload_that_lost_a_piece_is_corrupt(store: Store) -> None:
    async with store.transaction() as tx:
        name = await tx.payloads.put(NOISE)
    async with store._writer.begin() as connection:
        await connection.execute(
            delete(Payload).where(Payload.hash == blake3(_a_piece()).hexdigest())
        )
    with pytest.raises(StoreCorrupt, match=name):
        async with store.reading() as tx:
            await tx.payloads.get(name)


def _a_piece() -> bytes:
    return list(pieces(NOISE))[3]


@pytest.mark.parametrize("damage", [b"", b"other bytes", NOISE[:50], TEXT])
@pytest.mark.parametrize("data", [b"small", TEXT])
async def test_damaged_bytes_are_never_handed_out(store: Store, data: bytes, damage: bytes) -> None:
    async with store.transaction() as tx:
        name = await tx.payloads.put(data)
    async with store._writer.begin() as connection:
        flipped = damage if damage != data else data[::-1]
        await connection.execute(update(Payload).values(data=flipped))
    with pytest.raises(StoreCorrupt, match=name):
        async with store.reading() as tx:
            await tx.payloads.get(name)


async def test_a_missing_payload_has_a_name(store: Store) -> None:
    async with store.reading() as tx:
        with pytest.raises(PayloadMissing):
            await tx.payloads.get("feed")
        with pytest.raises(PayloadMissing):
            await tx.payloads.describe("feed")

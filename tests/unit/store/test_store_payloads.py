"""Payloads: the same bytes once, and never other bytes than were put."""

from __future__ import annotations

import random

import pytest
from blake3 import blake3
from sqlalchemy import func, select, update

from store.errors import PayloadMissing, StoreCorrupt
from store.models import Payload
from store.records import Encoding, PayloadRef
from store.session import Store

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


async def test_the_same_bytes_take_one_row(store: Store) -> None:
    for _ in range(3):
        async with store.transaction() as tx:
            await tx.payloads.put(TEXT)
            await tx.payloads.put(TEXT, media_type="text/other")
    async with store._reader.connect() as connection:
        assert await connection.scalar(select(func.count()).select_from(Payload)) == 1


async def test_bytes_are_compressed_only_where_that_is_smaller(store: Store) -> None:
    async with store.transaction() as tx:
        text, noise = await tx.payloads.put(TEXT), await tx.payloads.put(NOISE)
    async with store._reader.connect() as connection:
        rows = await connection.execute(select(Payload.hash, Payload.encoding, Payload.data))
        stored = {row.hash: (row.encoding, len(row.data)) for row in rows}
    assert stored[noise] == (Encoding.IDENTITY, len(NOISE))
    encoding, size = stored[text]
    assert encoding is Encoding.ZLIB
    assert size < len(TEXT) / 10


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

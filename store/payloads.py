"""Payloads: bytes, stored once under the hash of their content and checked when they are read.

Large payloads are stored in chunks, so that two payloads which share most of their bytes share
most of their rows too. Chunks are payloads themselves. A chunked payload refers to its chunks by
their row ids: the ids of chunks that were stored together are consecutive, and take about one byte
each after compression, where a hash takes 32.
"""

from __future__ import annotations

import asyncio
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, TypeVar

from blake3 import blake3
from sqlalchemy import Row, select

from store.chunks import MAX_BYTES, MIN_BYTES, split_into_chunks
from store.database.connection import StoreConnection
from store.database.urls import without_password
from store.errors import PayloadMissing, StoreCorrupt
from store.models import Payload
from store.records import Encoding, PayloadRef
from store.statements import insert_all_new, insert_new, record_of

T = TypeVar("T")

MAX_UNSPLIT_BYTES = MAX_BYTES
"""Larger payloads are stored in chunks. No chunk is larger, so a chunk is never split again."""

CHUNK_MEDIA_TYPE = "piece"
"""Media type of a chunk, as stored."""

_MAX_INLINE_BYTES = 128 << 10
"""More bytes are hashed and compressed in a thread: other tasks would notice the pause."""

_ID = struct.Struct("<q")
_BATCH = 500  # chunks in one statement; other tasks run between two statements
_COLUMNS = select(Payload.id, Payload.encoding, Payload.data, Payload.size)


def payload_hash(data: bytes) -> str:
    """The blake3 hash of these bytes, in hex: the name under which they are stored."""
    return blake3(data).hexdigest()


class Payloads:
    """The payloads of one transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def put(self, data: bytes, *, media_type: str = "application/octet-stream") -> str:
        """Store bytes, unless they are stored already; returns their hash.

        If they are stored already, their media type does not change.
        """
        name = payload_hash(data)
        if not await self._ids_of([name]):
            encoding, stored = await self._encode(data)
            await self._insert(name, len(data), media_type, encoding, stored)
        return name

    async def get(self, name: str) -> bytes:
        """The bytes with this hash.

        Raises:
            PayloadMissing: the store has no payload with this hash.
            StoreCorrupt: the stored bytes have another hash, or a chunk is missing.
        """
        result = await self._connection.execute(_COLUMNS.where(Payload.hash == name))
        row = result.one_or_none()
        if row is None:
            raise PayloadMissing(name)
        try:
            if row.encoding is Encoding.CHUNKED:
                data = await self._join_chunks(row.data, row.size)
            else:
                data = await _in_thread_if_large(
                    row.size, lambda: _decode(row.encoding, row.data, row.size)
                )
            if await _in_thread_if_large(len(data), lambda: payload_hash(data)) != name:
                raise ValueError(f"its {len(data)} bytes have another hash")
        except (zlib.error, ValueError) as error:
            url = without_password(self._connection.engine.url)
            raise StoreCorrupt(url, f"payload {name} cannot be restored: {error}") from error
        return data

    async def describe(self, name: str) -> PayloadRef:
        """The size and media type of a payload; raises PayloadMissing if it is not stored."""
        result = await self._connection.execute(
            select(Payload.hash, Payload.size, Payload.media_type).where(Payload.hash == name)
        )
        row = result.mappings().one_or_none()
        if row is None:
            raise PayloadMissing(name)
        return record_of(PayloadRef, row)

    async def _ids_of(self, names: Sequence[str]) -> dict[str, int]:
        """Hash -> row id, for those of these hashes that are stored."""
        ids: dict[str, int] = {}
        for start in range(0, len(names), _BATCH):
            if start:
                await asyncio.sleep(0)
            batch = names[start : start + _BATCH]
            result = await self._connection.execute(
                select(Payload.hash, Payload.id).where(Payload.hash.in_(batch))
            )
            ids.update((row.hash, row.id) for row in result)
        return ids

    async def _insert(
        self, name: str, size: int, media_type: str, encoding: Encoding, stored: bytes
    ) -> int:
        """Store a row, unless another process has stored the same payload; returns its id."""
        values = _row(name, size, media_type, encoding, stored)
        key = await insert_new(self._connection, Payload, values)
        return (await self._ids_of([name]))[name] if key is None else int(key[0])

    async def _encode(self, data: bytes) -> tuple[Encoding, bytes]:
        """The stored form of a payload; stores its chunks if it is large."""
        if len(data) <= MAX_UNSPLIT_BYTES:
            return _compress(data)
        chunks = await _in_thread_if_large(
            len(data), lambda: [(payload_hash(chunk), chunk) for chunk in split_into_chunks(data)]
        )
        ids = await self._ids_of([name for name, _ in chunks])
        new = [(name, chunk) for name, chunk in dict(chunks).items() if name not in ids]
        for start in range(0, len(new), _BATCH):
            ids |= await self._insert_chunks(new[start : start + _BATCH])
        return Encoding.CHUNKED, encode_chunk_ids([ids[name] for name, _ in chunks])

    async def _insert_chunks(self, chunks: Sequence[tuple[str, bytes]]) -> dict[str, int]:
        """Store chunks, given as (hash, bytes), unless they are stored; returns hash -> row id."""
        rows = await _in_thread_if_large(
            sum(len(chunk) for _, chunk in chunks),
            lambda: [
                _row(name, len(chunk), CHUNK_MEDIA_TYPE, *_compress(chunk))
                for name, chunk in chunks
            ],
        )
        await insert_all_new(self._connection, Payload, rows)
        return await self._ids_of([name for name, _ in chunks])

    async def _join_chunks(self, stored: bytes, size: int) -> bytes:
        """The bytes of a chunked payload; ValueError or zlib.error if it is damaged."""
        ids = decode_chunk_ids(stored, size)
        chunks: dict[int, bytes] = {}
        for start in range(0, len(ids), _BATCH):
            batch = set(ids[start : start + _BATCH])
            result = await self._connection.execute(_COLUMNS.where(Payload.id.in_(batch)))
            chunks |= await _in_thread_if_large(size, partial(_decode_rows, result.all()))
        missing = next((chunk_id for chunk_id in ids if chunk_id not in chunks), None)
        if missing is not None:
            raise ValueError(f"chunk {missing} of it is not stored")
        data = b"".join(chunks[chunk_id] for chunk_id in ids)
        if len(data) != size:
            raise ValueError(f"its chunks have {len(data)} bytes instead of {size}")
        return data


def encode_chunk_ids(ids: Sequence[int]) -> bytes:
    """The stored form of a list of chunk ids: differences of successive ids, compressed."""
    differences = (new - old for old, new in zip((0, *ids), ids, strict=False))
    return zlib.compress(b"".join(map(_ID.pack, differences)))


def decode_chunk_ids(stored: bytes, size: int) -> list[int]:
    """The inverse of `encode_chunk_ids`.

    Args:
        size: bytes of the payload; it limits how many chunks there can be.
    Raises:
        zlib.error, ValueError: the list is damaged.
    """
    # Damaged input may decompress to any size: stop at the size of the longest possible list.
    max_bytes = _ID.size * (size // MIN_BYTES + 1)
    differences = zlib.decompressobj().decompress(stored, max_bytes + 1)
    if len(differences) > max_bytes or len(differences) % _ID.size:
        raise ValueError("its list of chunks is damaged")
    return list(accumulate(difference for (difference,) in _ID.iter_unpack(differences)))


async def _in_thread_if_large(size: int, work: Callable[[], T]) -> T:
    """Run `work`; in a thread if it processes more than _MAX_INLINE_BYTES."""
    return work() if size <= _MAX_INLINE_BYTES else await asyncio.to_thread(work)


def _row(
    name: str, size: int, media_type: str, encoding: Encoding, stored: bytes
) -> dict[str, object]:
    return {
        "hash": name,
        "size": size,
        "media_type": media_type,
        "encoding": encoding,
        "data": stored,
    }


def _compress(data: bytes) -> tuple[Encoding, bytes]:
    """The stored form of one row's bytes: compressed, unless that is not smaller."""
    compressed = zlib.compress(data)
    if len(compressed) < len(data):
        return Encoding.ZLIB, compressed
    return Encoding.IDENTITY, data


def _decode(encoding: Encoding, stored: bytes, size: int) -> bytes:
    """The bytes of one row, wrong ones if it is damaged; zlib.error if they are not decodable."""
    if encoding is Encoding.ZLIB:
        # Damaged input may decompress to any size: one byte too many is enough to notice.
        return zlib.decompressobj().decompress(stored, size + 1)
    return stored


def _decode_rows(rows: Sequence[Row[Any]]) -> dict[int, bytes]:
    """Row id -> bytes of chunks."""
    return {row.id: _decode(row.encoding, row.data, row.size) for row in rows}

"""Payloads: bytes under the hash of their content, each kept once and checked when read."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable
from typing import TypeVar

from blake3 import blake3
from sqlalchemy import exists, select
from sqlalchemy.ext.asyncio import AsyncConnection

from store.errors import PayloadMissing, StoreCorrupt
from store.models import Payload
from store.records import Encoding, PayloadRef
from store.statements import insert_new, record_of
from store.urls import shown

T = TypeVar("T")

# Compressing more than this takes long enough for other tasks to notice.
_INLINE_BYTES = 128 << 10


def payload_hash(data: bytes) -> str:
    """The blake3 hash, in hex, under which these bytes are stored."""
    return blake3(data).hexdigest()


class Payloads:
    """The payloads of one transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def put(self, data: bytes, *, media_type: str = "application/octet-stream") -> str:
        """Store bytes, unless they are stored already; returns their hash.

        The media type is that of the first who stored them.
        """
        name = payload_hash(data)
        known = await self._connection.execute(select(exists().where(Payload.hash == name)))
        if known.scalar_one():
            return name
        encoding, stored = await _aside(len(data), lambda: _encode(data))
        values = {
            "hash": name,
            "size": len(data),
            "media_type": media_type,
            "encoding": encoding,
            "data": stored,
        }
        # Another process may have stored the same bytes since: that is as good.
        await insert_new(self._connection, Payload, values)
        return name

    async def get(self, name: str) -> bytes:
        """The bytes of this hash, as they were put.

        Raises:
            PayloadMissing: none are stored under it.
            StoreCorrupt: what is stored under it is something else.
        """
        result = await self._connection.execute(
            select(Payload.encoding, Payload.data, Payload.size).where(Payload.hash == name)
        )
        row = result.one_or_none()
        if row is None:
            raise PayloadMissing(name)
        try:
            return await _aside(row.size, lambda: _decode(name, row.encoding, row.data, row.size))
        except (zlib.error, ValueError) as error:
            url = shown(self._connection.engine.url)
            raise StoreCorrupt(url, f"payload {name} is not what was put: {error}") from error

    async def describe(self, name: str) -> PayloadRef:
        """Size and media type of a payload; PayloadMissing if none is stored."""
        result = await self._connection.execute(
            select(Payload.hash, Payload.size, Payload.media_type).where(Payload.hash == name)
        )
        row = result.mappings().one_or_none()
        if row is None:
            raise PayloadMissing(name)
        return record_of(PayloadRef, row)


async def _aside(size: int, work: Callable[[], T]) -> T:
    """Do the work, in a thread if it has many bytes to go through."""
    return work() if size <= _INLINE_BYTES else await asyncio.to_thread(work)


def _encode(data: bytes) -> tuple[Encoding, bytes]:
    """The bytes as they are to be stored: compressed where that is smaller."""
    compressed = zlib.compress(data)
    if len(compressed) < len(data):
        return Encoding.ZLIB, compressed
    return Encoding.IDENTITY, data


def _decode(name: str, encoding: Encoding, stored: bytes, size: int) -> bytes:
    """The bytes as they were put; ValueError or zlib.error if they are not those."""
    data = stored
    if encoding is Encoding.ZLIB:
        # Damaged input may claim to be enormous: never inflate more than was put.
        data = zlib.decompressobj().decompress(stored, size + 1)
    if payload_hash(data) != name:
        raise ValueError(f"its {len(data)} bytes have another hash")
    return data

"""Payloads: bytes under the hash of their content, each kept once and checked when read.

Large ones are kept in pieces, so that two that share most of their bytes share their rows too. The
pieces are payloads themselves, and so is the list of them where that is large.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Callable, Sequence
from typing import TypeVar

from blake3 import blake3
from sqlalchemy import select

from store.chunks import LEAST_BYTES, MOST_BYTES, pieces
from store.connection import StoreConnection
from store.errors import PayloadMissing, StoreCorrupt
from store.models import Payload
from store.records import Encoding, PayloadRef
from store.statements import insert_new, record_of
from store.urls import shown

T = TypeVar("T")

WHOLE_BYTES = MOST_BYTES
"""More than this is kept in pieces: at least two of them, and none too large to be kept whole."""

MANIFEST_BYTES = 2 * LEAST_BYTES
"""A longer list of pieces is a payload, in pieces as well: it grows as its text does."""

PIECE = "application/x-piece"
"""Media type of a piece, and of a list of pieces."""

# Compressing more than this takes long enough for other tasks to notice.
_INLINE_BYTES = 128 << 10
_HASH_BYTES = 32
_AT_ONCE = 500  # pieces in one query
_BYTES = select(Payload.hash, Payload.encoding, Payload.data, Payload.size)


def payload_hash(data: bytes) -> str:
    """The blake3 hash, in hex, under which these bytes are stored."""
    return blake3(data).hexdigest()


class Payloads:
    """The payloads of one transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def put(self, data: bytes, *, media_type: str = "application/octet-stream") -> str:
        """Store bytes, unless they are stored already; returns their hash.

        The media type is that of the first who stored them.
        """
        return await self._put(data, media_type, whole_bytes=WHOLE_BYTES)

    async def get(self, name: str) -> bytes:
        """The bytes of this hash, as they were put.

        Raises:
            PayloadMissing: none are stored under it.
            StoreCorrupt: what is stored under it is something else, or a piece of it is gone.
        """
        result = await self._connection.execute(_BYTES.where(Payload.hash == name))
        row = result.one_or_none()
        if row is None:
            raise PayloadMissing(name)
        try:
            if row.encoding is Encoding.PIECES:
                data = await self._joined(row.data, row.size)
            else:
                data = await _aside(row.size, lambda: _decode(row.encoding, row.data, row.size))
            if await _aside(len(data), lambda: payload_hash(data)) != name:
                raise ValueError(f"its {len(data)} bytes have another hash")
        except (zlib.error, ValueError, PayloadMissing) as error:
            url = shown(self._connection.engine.url)
            raise StoreCorrupt(url, f"payload {name} is not what was put: {error}") from error
        return data

    async def describe(self, name: str) -> PayloadRef:
        """Size and media type of a payload; PayloadMissing if none is stored."""
        result = await self._connection.execute(
            select(Payload.hash, Payload.size, Payload.media_type).where(Payload.hash == name)
        )
        row = result.mappings().one_or_none()
        if row is None:
            raise PayloadMissing(name)
        return record_of(PayloadRef, row)

    async def _put(self, data: bytes, media_type: str, *, whole_bytes: int) -> str:
        name = payload_hash(data)
        if not await self._known([name]):
            encoding, stored = await self._encoded(data, whole_bytes)
            await self._insert(name, len(data), media_type, encoding, stored)
        return name

    async def _known(self, names: Sequence[str]) -> set[str]:
        """Those of these hashes under which something is stored."""
        known: set[str] = set()
        for start in range(0, len(names), _AT_ONCE):
            wanted = names[start : start + _AT_ONCE]
            result = await self._connection.execute(
                select(Payload.hash).where(Payload.hash.in_(wanted))
            )
            known.update(result.scalars())
        return known

    async def _insert(
        self, name: str, size: int, media_type: str, encoding: Encoding, stored: bytes
    ) -> None:
        """Store a row, unless another process has done so since it was looked for."""
        values = {
            "hash": name,
            "size": size,
            "media_type": media_type,
            "encoding": encoding,
            "data": stored,
        }
        await insert_new(self._connection, Payload, values)

    async def _encoded(self, data: bytes, whole_bytes: int) -> tuple[Encoding, bytes]:
        """The bytes as they are to be stored: in pieces, or compressed where that is smaller."""
        if len(data) <= whole_bytes:
            return _encode(data)
        cut = await _aside(
            len(data), lambda: [(payload_hash(piece), piece) for piece in pieces(data)]
        )
        names = [name for name, _ in cut]
        known = await self._known(names)
        for name, piece in dict(cut).items():
            if name not in known:
                await self._insert(name, len(piece), PIECE, *_encode(piece))
        manifest = b"".join(map(bytes.fromhex, names))
        if len(manifest) <= MANIFEST_BYTES:
            return Encoding.PIECES, manifest
        name = await self._put(manifest, PIECE, whole_bytes=MANIFEST_BYTES)
        return Encoding.PIECES, bytes.fromhex(name)

    async def _joined(self, manifest: bytes, size: int) -> bytes:
        """The bytes whose pieces a manifest names: all of them, or the one that names them."""
        if len(manifest) == _HASH_BYTES:
            manifest = await self.get(manifest.hex())
        names = [
            manifest[start : start + _HASH_BYTES].hex()
            for start in range(0, len(manifest), _HASH_BYTES)
        ]
        found: dict[str, bytes] = {}
        for start in range(0, len(names), _AT_ONCE):
            wanted = set(names[start : start + _AT_ONCE])
            result = await self._connection.execute(_BYTES.where(Payload.hash.in_(wanted)))
            for row in result:
                found[row.hash] = _decode(row.encoding, row.data, row.size)
        missing = next((name for name in names if name not in found), None)
        if missing is not None:
            raise PayloadMissing(missing)
        data = b"".join(found[name] for name in names)
        if len(data) != size:
            raise ValueError(f"its pieces have {len(data)} bytes, {size} were put")
        return data


async def _aside(size: int, work: Callable[[], T]) -> T:
    """Do the work, in a thread if it has many bytes to go through."""
    return work() if size <= _INLINE_BYTES else await asyncio.to_thread(work)


def _encode(data: bytes) -> tuple[Encoding, bytes]:
    """The bytes as they are to be stored: compressed where that is smaller."""
    compressed = zlib.compress(data)
    if len(compressed) < len(data):
        return Encoding.ZLIB, compressed
    return Encoding.IDENTITY, data


def _decode(encoding: Encoding, stored: bytes, size: int) -> bytes:
    """Bytes of one row as they were put, or others; zlib.error if they cannot be."""
    if encoding is Encoding.ZLIB:
        # Damaged input may claim to be enormous: never inflate more than was put.
        return zlib.decompressobj().decompress(stored, size + 1)
    return stored

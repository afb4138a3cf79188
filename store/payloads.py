"""Payloads: bytes under the hash of their content, each kept once and checked when read.

Large ones are kept in pieces, so that two that share most of their bytes share their rows too. The
pieces are payloads themselves. Whoever is kept in pieces names them by their numbers: those of
pieces that were stored together follow one another, and take about a byte where a hash takes 32.
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

from store.chunks import LEAST_BYTES, MOST_BYTES, pieces
from store.connection import StoreConnection
from store.errors import PayloadMissing, StoreCorrupt
from store.models import Payload
from store.records import Encoding, PayloadRef
from store.statements import insert_all_new, insert_new, record_of
from store.urls import shown

T = TypeVar("T")

WHOLE_BYTES = MOST_BYTES
"""More than this is kept in pieces: at least two of them, and none too large to be kept whole."""

PIECE = "piece"
"""Media type of a piece."""

# Compressing more than this takes long enough for other tasks to notice.
_INLINE_BYTES = 128 << 10
_NUMBER = struct.Struct("<q")
_AT_ONCE = 500  # pieces in one statement: between two of them other tasks have their turn
_BYTES = select(Payload.id, Payload.encoding, Payload.data, Payload.size)


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
        name = payload_hash(data)
        if not await self._known([name]):
            encoding, stored = await self._encoded(data)
            await self._insert(name, len(data), media_type, encoding, stored)
        return name

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
        except (zlib.error, ValueError) as error:
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

    async def _known(self, names: Sequence[str]) -> dict[str, int]:
        """The numbers of those of these hashes under which something is stored."""
        known: dict[str, int] = {}
        for start in range(0, len(names), _AT_ONCE):
            if start:
                await asyncio.sleep(0)
            wanted = names[start : start + _AT_ONCE]
            result = await self._connection.execute(
                select(Payload.hash, Payload.id).where(Payload.hash.in_(wanted))
            )
            known.update((row.hash, row.id) for row in result)
        return known

    async def _insert(
        self, name: str, size: int, media_type: str, encoding: Encoding, stored: bytes
    ) -> int:
        """Store a row, unless another process has done so since it was looked for; its number."""
        values = _row(name, size, media_type, encoding, stored)
        key = await insert_new(self._connection, Payload, values)
        return (await self._known([name]))[name] if key is None else int(key[0])

    async def _encoded(self, data: bytes) -> tuple[Encoding, bytes]:
        """The bytes as they are to be stored: in pieces, or compressed where that is smaller."""
        if len(data) <= WHOLE_BYTES:
            return _encode(data)
        cut = await _aside(
            len(data), lambda: [(payload_hash(piece), piece) for piece in pieces(data)]
        )
        numbers = await self._known([name for name, _ in cut])
        new = [(name, piece) for name, piece in dict(cut).items() if name not in numbers]
        for start in range(0, len(new), _AT_ONCE):
            numbers |= await self._insert_pieces(new[start : start + _AT_ONCE])
        return Encoding.PIECES, listed([numbers[name] for name, _ in cut])

    async def _insert_pieces(self, some: Sequence[tuple[str, bytes]]) -> dict[str, int]:
        """Store pieces under their hashes, as `_insert`; their numbers."""
        rows = await _aside(
            sum(len(piece) for _, piece in some),
            lambda: [_row(name, len(piece), PIECE, *_encode(piece)) for name, piece in some],
        )
        await insert_all_new(self._connection, Payload, rows)
        return await self._known([name for name, _ in some])

    async def _joined(self, stored: bytes, size: int) -> bytes:
        """The bytes whose pieces are listed."""
        numbers = numbers_in(stored, size)
        found: dict[int, bytes] = {}
        for start in range(0, len(numbers), _AT_ONCE):
            wanted = set(numbers[start : start + _AT_ONCE])
            result = await self._connection.execute(_BYTES.where(Payload.id.in_(wanted)))
            found |= await _aside(size, partial(_decoded, result.all()))
        missing = next((number for number in numbers if number not in found), None)
        if missing is not None:
            raise ValueError(f"piece {missing} of it is not stored")
        data = b"".join(found[number] for number in numbers)
        if len(data) != size:
            raise ValueError(f"its pieces have {len(data)} bytes, {size} were put")
        return data


def listed(numbers: Sequence[int]) -> bytes:
    """Numbers of pieces as they are stored: each less the one before, compressed."""
    steps = (new - old for old, new in zip((0, *numbers), numbers, strict=False))
    return zlib.compress(b"".join(map(_NUMBER.pack, steps)))


def numbers_in(stored: bytes, size: int) -> list[int]:
    """The numbers that were listed for a payload of a size.

    Raises:
        zlib.error, ValueError: they are no such list.
    """
    # Damaged input may claim to be enormous: never inflate more than so many bytes can be cut to.
    most = _NUMBER.size * (size // LEAST_BYTES + 1)
    steps = zlib.decompressobj().decompress(stored, most + 1)
    if len(steps) > most or len(steps) % _NUMBER.size:
        raise ValueError("its list of pieces is damaged")
    return list(accumulate(number for (number,) in _NUMBER.iter_unpack(steps)))


async def _aside(size: int, work: Callable[[], T]) -> T:
    """Do the work, in a thread if it has many bytes to go through."""
    return work() if size <= _INLINE_BYTES else await asyncio.to_thread(work)


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


def _decoded(rows: Sequence[Row[Any]]) -> dict[int, bytes]:
    """The bytes of pieces, by number."""
    return {row.id: _decode(row.encoding, row.data, row.size) for row in rows}

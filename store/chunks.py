"""Content-defined chunking: the bytes themselves decide where they are split.

Inserting or appending bytes changes only the chunks around them. So a text that grows, such as a
conversation, shares nearly all of its chunks with its earlier versions.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from typing import Any

from blake3 import blake3

MIN_BYTES = 256
"""Smallest chunk, except the last one of some data."""

MEAN_BYTES = 1024
"""Mean distance between two possible ends of chunks; a power of 2."""

MAX_BYTES = 8192
"""Largest chunk."""

_MASK = MEAN_BYTES - 1
_WINDOW = 16  # bytes before a possible end of a chunk that decide about it; a power of 2


def split_into_chunks(data: bytes) -> Iterator[bytes]:
    """The chunks of some bytes in order, each of MIN_BYTES to MAX_BYTES, except the last.

    The same bytes are always split in the same way, so that chunks which are stored already are
    found again by later versions of this program.
    Source: content-defined chunking with a gear hash, Xia et al. (2016), FastCDC, section 3.
    """
    start = 0
    cut_points = _cut_points(data)
    while len(data) - start > MIN_BYTES:
        limit = min(start + MAX_BYTES, len(data))
        index = bisect_left(cut_points, start + MIN_BYTES)
        end = min(cut_points[index], limit) if index < len(cut_points) else limit
        yield data[start:end]
        start = end
    if start < len(data):
        yield data[start:]


def _cut_points(data: bytes) -> list[int]:
    """Offsets at which a chunk may end, ascending."""
    import numpy as np

    hashes = _gear_table()[np.frombuffer(data, dtype=np.uint8)]
    # Each round adds the hash that ends `width` bytes earlier: a hash then covers twice as many.
    width = 1
    while width < _WINDOW:
        hashes[width:] += hashes[:-width] << np.uint32(width)
        width *= 2
    cut_points: list[int] = (np.flatnonzero(hashes >> np.uint32(16) & _MASK == 0) + 1).tolist()
    return cut_points


@cache
def _gear_table() -> Any:
    """A fixed pseudo-random number for each byte value; stored chunks depend on it."""
    import numpy as np

    return np.frombuffer(blake3(b"orchestrate gear").digest(4 * 256), dtype="<u4").copy()

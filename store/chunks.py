"""Cut bytes into pieces at places that their own content decides.

Bytes that were inserted or appended change the pieces around them and no others, so texts that
grow, like a conversation, share nearly all of their pieces with what they were before.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from functools import cache
from typing import Any

from blake3 import blake3

LEAST_BYTES = 256
MEAN_BYTES = 1024
MOST_BYTES = 8192

_MASK = MEAN_BYTES - 1
_WINDOW = 16  # bytes that decide whether a piece ends behind them; a power of 2


def pieces(data: bytes) -> Iterator[bytes]:
    """The pieces of some bytes in order, each of LEAST_BYTES to MOST_BYTES, but for the last.

    The same bytes are always cut alike: pieces that are stored are found again by later versions.
    Source: content-defined chunking with a gear hash, Xia et al. (2016), FastCDC, section 3.
    """
    start = 0
    places = _places(data)
    while len(data) - start > LEAST_BYTES:
        most = min(start + MOST_BYTES, len(data))
        index = bisect_left(places, start + LEAST_BYTES)
        end = min(places[index], most) if index < len(places) else most
        yield data[start:end]
        start = end
    if start < len(data):
        yield data[start:]


def _places(data: bytes) -> list[int]:
    """Where pieces may end, ascending."""
    import numpy as np

    hashes = _gear()[np.frombuffer(data, dtype=np.uint8)]
    back = 1  # bytes that are in each hash: then twice as many, from the hash so far before it
    while back < _WINDOW:
        hashes[back:] += hashes[:-back] << np.uint32(back)
        back *= 2
    places: list[int] = (np.flatnonzero(hashes >> np.uint32(16) & _MASK == 0) + 1).tolist()
    return places


@cache
def _gear() -> Any:
    """A number for each byte, chosen once and for all."""
    import numpy as np

    return np.frombuffer(blake3(b"orchestrate gear").digest(4 * 256), dtype="<u4").copy()

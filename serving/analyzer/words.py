"""What the words of a prompt say about its answer, without keeping the words."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NUM_WORD_BUCKETS = 16
"""Few enough that a count stands for thousands of words: no text can be read back from it."""

LONGEST_TEXT = 4096
"""Characters looked at, half from either end: instructions stand at the ends of a prompt."""

BYTES_PER_TOKEN = 4
"""UTF-8 bytes of one token of ordinary English text; the same constant recorded and predicted."""

_COUNT_STEPS = 16.0  # steps of one doubling of a count, so that 65535 is the largest

# Bytes of a word and what each is worth: letters count without case, other scripts byte by byte.
_FOLDED = np.frombuffer(bytes(range(256)).lower(), np.uint8).astype(np.uint64)
_IN_WORD = np.array([chr(byte).isalnum() or byte >= 0x80 for byte in range(256)])
_WORTH = (_FOLDED + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
_PLACES = np.arange(4 * (LONGEST_TEXT + 1), dtype=np.uint64)
_POSITIONS = (2 * _PLACES + 1) * np.uint64(0xC2B2AE3D27D4EB4F)


def estimate_prompt_tokens(text: str) -> int:
    """Prompt tokens by UTF-8 length, at least 1 unless the text is empty.

    An estimate before any tokenizer is at hand. What was learned from it stays valid only for
    what is predicted from it too.
    """
    num_bytes = len(text) if text.isascii() else len(text.encode(errors="replace"))
    return -(-num_bytes // BYTES_PER_TOKEN)


def count_words(text: str) -> bytes:
    """Counts of the prompt's words by bucket of a fixed hash, on a log scale, a byte each.

    The same bytes in every process and on every machine. Of a long text the first and the last
    LONGEST_TEXT / 2 characters are read.

    Returns:
        NUM_WORD_BUCKETS bytes; each round(16 * log2(1 + count)), at most 255.
    """
    if len(text) > LONGEST_TEXT:
        half = LONGEST_TEXT // 2
        text = f"{text[:half]} {text[-half:]}"
    raw = np.frombuffer(text.encode(errors="replace"), np.uint8)
    in_word = np.zeros(len(raw) + 2, bool)
    in_word[1:-1] = _IN_WORD.take(raw)
    edges = np.flatnonzero(in_word[1:] != in_word[:-1])
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    if not len(starts):
        return bytes(NUM_WORD_BUCKETS)
    letters = np.flatnonzero(in_word[1:-1])
    places = letters - np.repeat(starts, lengths)
    worth = _WORTH.take(raw.take(letters)) ^ _POSITIONS.take(places)
    hashes = np.add.reduceat(worth, np.cumsum(lengths) - lengths)
    buckets = (_mixed(hashes) >> np.uint64(60)).astype(np.intp)
    counts = np.bincount(buckets, minlength=NUM_WORD_BUCKETS)
    steps = np.rint(_COUNT_STEPS * np.log2(1.0 + counts))
    return bytes(np.minimum(steps, 255).astype(np.uint8))


def _mixed(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Every bit of the sum reaches the highest four, which name the bucket."""
    hashes = (hashes ^ (hashes >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed: NDArray[np.uint64] = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    return mixed

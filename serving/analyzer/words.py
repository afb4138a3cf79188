"""Word counts of a prompt as features, by hash bucket, so that no text is stored."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

NUM_WORD_BUCKETS = 16
"""Number of hash buckets: so few that each stands for thousands of words, and no text can be
recovered from the counts."""

MAX_CHARACTERS = 4096
"""Characters of a text that are counted, half from each end: prompts have their instructions at
the ends."""

BYTES_PER_TOKEN = 4
"""UTF-8 bytes per token of ordinary English text, for the estimate of prompt tokens."""

_COUNT_STEPS = 16.0  # steps per doubling of a count, so that the largest count is 65535

# Hash terms of a word's bytes: ASCII letters without case, other scripts byte by byte.
_FOLDED = np.frombuffer(bytes(range(256)).lower(), np.uint8).astype(np.uint64)
_IN_WORD = np.array([chr(byte).isalnum() or byte >= 0x80 for byte in range(256)])
_BYTE_TERMS = (_FOLDED + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
_OFFSETS = np.arange(4 * (MAX_CHARACTERS + 1), dtype=np.uint64)
_OFFSET_TERMS = (2 * _OFFSETS + 1) * np.uint64(0xC2B2AE3D27D4EB4F)


def estimate_prompt_tokens(text: str) -> int:
    """Prompt tokens estimated from the UTF-8 length; at least 1 unless the text is empty.

    For use without a tokenizer. A model that was trained on this estimate must be given it for
    predictions too.
    """
    num_bytes = len(text) if text.isascii() else len(text.encode(errors="replace"))
    return -(-num_bytes // BYTES_PER_TOKEN)


def count_words(text: str) -> bytes:
    """Counts of the prompt's words by hash bucket, on a log scale, one byte each.

    The hash is fixed: the bytes are the same in every process and on every machine. Of a longer
    text, the first and the last MAX_CHARACTERS / 2 characters are counted.

    Returns:
        NUM_WORD_BUCKETS bytes, each min(round(16 * log2(1 + count)), 255).
    """
    if len(text) > MAX_CHARACTERS:
        half = MAX_CHARACTERS // 2
        text = f"{text[:half]} {text[-half:]}"
    raw = np.frombuffer(text.encode(errors="replace"), np.uint8)
    in_word = np.zeros(len(raw) + 2, bool)
    in_word[1:-1] = _IN_WORD.take(raw)
    edges = np.flatnonzero(in_word[1:] != in_word[:-1])
    starts, lengths = edges[::2], edges[1::2] - edges[::2]
    if not len(starts):
        return bytes(NUM_WORD_BUCKETS)
    letters = np.flatnonzero(in_word[1:-1])
    offsets = letters - np.repeat(starts, lengths)
    terms = _BYTE_TERMS.take(raw.take(letters)) ^ _OFFSET_TERMS.take(offsets)
    hashes = np.add.reduceat(terms, np.cumsum(lengths) - lengths)
    buckets = (_mixed(hashes) >> np.uint64(60)).astype(np.intp)
    counts = np.bincount(buckets, minlength=NUM_WORD_BUCKETS)
    steps = np.rint(_COUNT_STEPS * np.log2(1.0 + counts))
    return bytes(np.minimum(steps, 255).astype(np.uint8))


def _mixed(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Mix the hashes so that the highest four bits, the bucket, depend on all bits."""
    hashes = (hashes ^ (hashes >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed: NDArray[np.uint64] = (hashes ^ (hashes >> np.uint64(29))) * np.uint64(0x94D049BB133111EB)
    return mixed

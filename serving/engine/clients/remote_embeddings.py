"""Requests and answers of `/v1/embeddings`: the texts of each request, the vectors of an answer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

BATCH_TEXTS = 256
"""Most texts of one request; OpenAI's limit is 2,048."""

BATCH_CHARACTERS = 200_000
"""Most characters of one request, unless a single text has more: OpenAI takes 300,000 tokens."""


def batches_of(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """The texts in their order, in parts of BATCH_TEXTS texts and BATCH_CHARACTERS at most."""
    batch: list[str] = []
    characters = 0
    for text in texts:
        is_full = len(batch) == BATCH_TEXTS or characters + len(text) > BATCH_CHARACTERS
        if batch and is_full:
            yield batch
            batch, characters = [], 0
        batch.append(text)
        characters += len(text)
    if batch:
        yield batch


def vectors_of(answer: Any, count: int) -> list[list[float]]:
    """The vectors of an answer, in the order of their texts.

    Raises:
        ValueError: they are not as many as the texts, or not all of one length and finite.
    """
    parts = sorted(getattr(answer, "data", None) or (), key=lambda part: part.index)
    if [part.index for part in parts] != list(range(count)):
        raise ValueError(f"{len(parts)} embeddings of {count} texts")
    vectors = [[float(value) for value in part.embedding] for part in parts]
    if len({len(vector) for vector in vectors}) > 1 or not all(vectors):
        raise ValueError("embeddings of different lengths")
    if not all(math.isfinite(value) for vector in vectors for value in vector):
        raise ValueError("an embedding with a value that is not finite")
    return vectors

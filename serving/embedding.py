"""The interface of engines that turn texts into vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable


@runtime_checkable
class EmbeddingEngine(Protocol):
    """An engine, or a part of what one can do, which computes embeddings."""

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """A vector for each text, in their order; all have the same length.

        Raises:
            ServingError: the engine could not compute them; cancelling aborts the request.
        """
        ...

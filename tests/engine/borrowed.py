"""The session's engine, lent to a runtime."""

from __future__ import annotations

from typing import Any

from serving.engine.clients.embedded import EmbeddedEngine


class Borrowed:
    """The session's engine for a runtime, which would close it."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def close(self) -> None:
        """Left to the session."""

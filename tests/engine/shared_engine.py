"""The engine of the test session, for use by a runtime."""

from __future__ import annotations

from typing import Any

from serving.engine.clients.embedded import EmbeddedEngine


class SharedEngine:
    """The session's engine, without the effect of `close`: a runtime closes its engine."""

    def __init__(self, engine: EmbeddedEngine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def close(self) -> None:
        """Does nothing; the session closes the engine."""

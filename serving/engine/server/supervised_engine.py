"""vLLM's engine for requests that outlive its process."""

from __future__ import annotations

from typing import Protocol

from vllm.v1.engine.async_llm import AsyncLLM

from serving.errors import ServingError


class Supervision(Protocol):
    """What a supervisor knows of its engine."""

    @property
    def end(self) -> ServingError | None:
        """Why there is no engine any more."""
        ...

    @property
    def is_running(self) -> bool:
        """Whether there is an engine now."""
        ...


class SupervisedEngine(AsyncLLM):
    """An AsyncLLM which is not healthy while its process is started again, but not in error.

    In error its routes would refuse every request, and vLLM's watchdog would end the server.
    """

    supervisor: Supervision

    @classmethod
    def supervise(cls, engine: AsyncLLM, supervisor: Supervision) -> SupervisedEngine:
        """Make a running engine a supervised one; vLLM creates its own class only."""
        engine.__class__ = cls
        engine.supervisor = supervisor
        supervised: SupervisedEngine = engine
        return supervised

    @property
    def has_died(self) -> bool:
        """Whether its process is gone."""
        return bool(super().errored)

    @property
    def errored(self) -> bool:
        """Whether it is gone for good."""
        return self.supervisor.end is not None

    async def check_health(self) -> None:
        """Raise an error if no request could be computed now."""
        if not self.supervisor.is_running:
            raise self.dead_error

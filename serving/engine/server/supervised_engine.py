"""vLLM's engine with a core that can be replaced: all that healing it touches of vLLM."""

from __future__ import annotations

import asyncio
from typing import Any, Protocol

from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.core_client import AsyncMPClient, EngineCoreClient
from vllm.v1.executor.abstract import Executor

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
    """An AsyncLLM which is not healthy while its core is started again, but not in error.

    In error its routes would refuse every request, and vLLM's watchdog would end the server.

    Attributes:
        supervision: set by the supervisor.
    """

    supervision: Supervision
    output_handler: Any  # a task; None before it is started

    @classmethod
    def of(cls, engine: AsyncLLM, supervision: Supervision) -> SupervisedEngine:
        """Make a running engine a supervised one; vLLM creates its own class only."""
        engine.__class__ = cls
        supervised: SupervisedEngine = engine
        supervised.supervision = supervision
        return supervised

    @property
    def errored(self) -> bool:
        """Whether its core is gone for good."""
        return self.supervision.end is not None

    async def check_health(self) -> None:
        """Raise an error if no request could be computed now."""
        if not self.supervision.is_running:
            raise self.dead_error

    @property
    def has_died(self) -> bool:
        """Whether its core is gone."""
        return bool(super().errored)

    async def until_death(self) -> None:
        """Wait until its core is gone: the task that reads its outputs ends."""
        await asyncio.wait([self.output_handler])

    async def forget(self) -> None:
        """Free what is kept of requests, each of which has its error; and of the core's images."""
        states = self.output_processor.request_states
        self.output_processor.abort_requests(list(states), internal=True)
        await self.renderer.clear_mm_cache_async()

    def new_core(self) -> AsyncMPClient:
        """Start another core; blocks while it loads the model."""
        self.engine_core.shutdown()  # what is left of the dead one
        config = self.vllm_config
        config.cache_config.num_gpu_blocks = None  # else those of the new one would be added
        return EngineCoreClient.make_async_mp_client(
            vllm_config=config,
            executor_class=Executor.get_class(config),
            log_stats=self.log_stats,
            renderer=self.renderer,
        )

    def use(self, core: AsyncMPClient) -> None:
        """Compute requests by this core from now on."""
        self.engine_core, self.output_handler = core, None
        self._run_output_handler()  # AsyncLLM does so in its first request

"""Starts the engine core again when its process dies; the server and its connections stay.

vLLM's AsyncLLM stays too: of all its parts only the client of the engine core is replaced, so that
whatever refers to it (routes, models, renderer, metrics) needs not know.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import time
from collections.abc import Callable
from typing import Any

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram

from serving.engine.healing.restart_limit import PAUSE_S, may_restart
from serving.engine.setup.model_loading import error_summary
from serving.errors import EngineClosed, EngineDied, ServingError

RECOVERY_BUCKETS_S = (1, 2, 5, 10, 15, 20, 30, 45, 60, 90, 120, 180, 300, 600)

_KILL_S = 0.1
"""Seconds between two attempts to end a core that is being started while the server stops."""

logger = logging.getLogger("orchestrate")


class EngineSupervisor:
    """Watches an engine from its start on; belongs to the event loop that creates it.

    Args:
        engine: an AsyncLLM of vLLM, which becomes a SupervisedEngine.
        model: named in errors.
        restarts: how often it is started again within WINDOW_S.
        on_death: called at each death, before the engine is started again.
    Attributes:
        restarts: as given.
        is_stopped: whether the server ends, by a signal.
        end: why there is no engine any more; None while there is one, or will be.
    """

    def __init__(
        self,
        engine: Any,
        model: str,
        restarts: int,
        *,
        on_death: Callable[[], None],
        registry: CollectorRegistry = REGISTRY,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        from serving.engine.server.supervised_engine import SupervisedEngine

        self.is_stopped = False
        self.end: ServingError | None = None
        self._engine = SupervisedEngine.of(engine, self)
        self._model = model
        self.restarts = restarts
        self._on_death = on_death
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._starts_s: list[float] = []
        self._starting: asyncio.Future[Any] | None = None
        self._settled = asyncio.Event()  # it runs, or has ended for good
        self._settled.set()
        self._deaths = Counter(
            "orchestrate_engine_deaths", "Deaths of the engine's process.", registry=registry
        )
        self._recovery = Histogram(
            "orchestrate_engine_recovery_seconds",
            "Seconds from a death of the engine until it ran again.",
            buckets=RECOVERY_BUCKETS_S,
            registry=registry,
        )

    @property
    def is_running(self) -> bool:
        """Whether there is an engine now."""
        return self.end is None and self._settled.is_set() and not self._engine.has_died

    async def until_running(self) -> None:
        """Wait until there is an engine.

        Raises:
            EngineDied, EngineClosed: there will be none.
        """
        if self.end is None and self._engine.has_died:  # which `run` may not have seen yet
            self._settled.clear()
        await self._settled.wait()
        if self.end is not None:
            raise self.end

    async def run(self) -> None:
        """Heal the engine whenever it dies, until there is none any more."""
        while True:
            await self._engine.until_death()
            if self.is_stopped:
                return
            died_s = self._clock()
            self._settled.clear()
            self._deaths.inc()
            self._on_death()
            await self._engine.forget()
            if not await self._start_again():
                self._finish(EngineDied("its process ended; its output above says why"))
                return
            recovery_s = self._clock() - died_s
            self._recovery.observe(recovery_s)
            logger.warning("the engine runs again, %.1f s after it died", recovery_s)
            self._settled.set()

    def stop(self) -> None:
        """Start no engine any more, and end the requests that wait for one; from any thread."""
        self.is_stopped = True
        self._loop.call_soon_threadsafe(self._finish, EngineClosed(self._model))

    async def close(self) -> None:
        """End an engine that is being started; call it after `run` was cancelled or has ended."""
        while self._starting is not None and not self._starting.done():
            for process in multiprocessing.active_children():
                if process.name.startswith("EngineCore"):
                    process.kill()
            await asyncio.wait([self._starting], timeout=_KILL_S)
        if self._starting is not None and not self._starting.exception():
            self._engine.use(self._starting.result())  # vLLM's shutdown ends it

    def _finish(self, end: ServingError) -> None:
        self.end = self.end or end
        self._settled.set()

    async def _start_again(self) -> bool:
        """Whether the engine runs again; if not, no more starts are allowed."""
        while not self.is_stopped and may_restart(self.restarts, self._starts_s, self._clock()):
            logger.error("the engine died; it is started again")
            self._starts_s.append(self._clock())
            self._starting = asyncio.ensure_future(asyncio.to_thread(self._engine.new_core))
            try:
                core = await asyncio.shield(self._starting)
                self._starting = None
            except Exception as error:
                logger.error("the engine could not be started again: %s", error_summary(error))
                await asyncio.sleep(PAUSE_S)
            else:
                self._engine.use(core)
                return True
        return False

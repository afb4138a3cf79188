"""The runtime of flows that are awaited without an open one: it stays open for the next of them.

It is closed at the end of its event loop, since it is an async generator: `asyncio.run` cancels the
loop's tasks, so that the ends of their runs are recorded, and then closes such generators. A loop
that is just closed or dropped closes nothing; an engine in this process makes way for the next one
all the same, and ends with the process.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from orchestrator.display.notebook import NotebookProgress, in_notebook
from orchestrator.runtime.runtime import Runtime
from orchestrator.settings import EMBEDDED, Settings, read_settings
from orchestrator.wiring import engine_config, enter_runtime, loop_around, runtime_around


@asynccontextmanager
async def shared_runtime() -> AsyncIterator[Runtime]:
    """The runtime that is open here; else the one that this event loop keeps open.

    Its settings are those of the environment: if they have changed, another one is opened, and the
    former is closed once no run uses it. In a notebook it shows what its runs do.
    """
    opened = runtime_around()
    if opened is not None:
        yield opened
        return
    kept = await _acquire(read_settings())
    try:
        yield kept.runtime
    finally:
        kept.leave()


def opened_loop() -> asyncio.AbstractEventLoop | None:
    """The event loop of the runtime that is open here; None if none is."""
    if (around := loop_around()) is not None:
        return around
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        return None
    mine = _by_loop.get(loop)
    return loop if mine is not None and any(kept.is_usable for kept in mine.kept) else None


class _KeptRuntime:
    """A runtime that its event loop keeps open.

    An engine in this process is there once, so this one makes way for another, also of another
    thread's event loop, while no run uses it.

    Args:
        key: what the settings were when it was opened.
    """

    def __init__(self, key: object) -> None:
        self.key = key
        self.runtime: Runtime
        self._loop = asyncio.get_running_loop()
        self._num_users = 1  # the run that it is opened for
        self._is_retired = False
        self._life: AsyncGenerator[Runtime, None]

    async def open(self, settings: Settings) -> None:
        """Open it; raises as `open_runtime`."""
        self._life = self._live(settings)
        self.runtime = await anext(self._life)

    async def close(self) -> None:
        """Close it; nothing uses it any more."""
        await self._life.aclose()

    @property
    def is_usable(self) -> bool:
        """Whether runs may begin in it."""
        has_ended = any(engine.has_ended for engine in self.runtime.engines.in_process)
        return not self._is_retired and not has_ended

    def take(self) -> None:
        """A run begins to use it."""
        self._num_users += 1

    def leave(self) -> None:
        """A run has ended; called from any task."""
        with _guard:
            self._num_users -= 1

    def retire(self) -> bool:
        """Let no run use it any more, unless one does now; returns whether none does."""
        with _guard:
            self._is_retired = self._is_retired or not self._num_users or self._loop.is_closed()
            return self._is_retired

    async def _live(self, settings: Settings) -> AsyncGenerator[Runtime, None]:
        resources = AsyncExitStack()
        try:
            runtime = await _open(resources, settings)
            for engine in runtime.engines.in_process:
                engine.may_be_closed = self.retire
            yield runtime
        finally:
            self._is_retired = True
            if (mine := _by_loop.get(self._loop)) is not None and self in mine.kept:
                mine.kept.remove(self)
            await resources.aclose()


@dataclass(slots=True)
class _LoopRuntimes:
    """The runtimes that an event loop keeps open: one, or more while runs use former ones.

    Attributes:
        lock: held while one is opened or closed.
    """

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    kept: list[_KeptRuntime] = field(default_factory=list)


_by_loop: dict[asyncio.AbstractEventLoop, _LoopRuntimes] = {}
_guard = threading.Lock()


async def _acquire(settings: Settings) -> _KeptRuntime:
    """The runtime with these settings that this event loop keeps open, for one more run."""
    mine = _of_this_loop()
    key = _key_of(settings)
    async with mine.lock:
        for kept in mine.kept:
            with _guard:
                if kept.key == key and kept.is_usable:
                    kept.take()
                    return kept
        for former in list(mine.kept):  # with other settings, or its engine has ended or made way
            if former.retire():
                await former.close()
        kept = _KeptRuntime(key)
        await kept.open(settings)
        mine.kept.append(kept)
        return kept


def _of_this_loop() -> _LoopRuntimes:
    """What the running event loop keeps open; forgets loops that are closed."""
    with _guard:
        for loop in [loop for loop in _by_loop if loop.is_closed()]:
            del _by_loop[loop]
        return _by_loop.setdefault(asyncio.get_running_loop(), _LoopRuntimes())


def _key_of(settings: Settings) -> tuple[Any, ...]:
    """What distinguishes settings; a relative path of a store names another file elsewhere."""
    from store.database.urls import normalised  # SQLAlchemy takes time to import

    return settings, normalised(settings.store)


async def _open(resources: AsyncExitStack, settings: Settings) -> Runtime:
    if not _is_cell():
        return await enter_runtime(resources, settings)
    progress = NotebookProgress()
    if settings.engine == EMBEDDED:
        model = engine_config(settings).model
        progress.say(f"starting vLLM with the model {model}: 10 to 20 s, once for the notebook")
    runtime = await enter_runtime(resources, settings, on_event=progress.on_event)
    await runtime.engine.start()
    return runtime


def _is_cell() -> bool:
    """Whether this is the event loop on which a notebook's cells are executed."""
    return in_notebook() and threading.current_thread() is threading.main_thread()

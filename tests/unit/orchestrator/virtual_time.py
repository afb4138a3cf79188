"""An event loop in virtual time: waiting takes no real time, and its duration is exact."""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Executor
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ParamSpec, TypeVar, TypeVarTuple, Unpack

from orchestrator import Flow, Runtime
from orchestrator.events import Listener
from orchestrator.runtime.results import RunResult
from orchestrator.testing import ScriptedEngine
from tests.unit.orchestrator.orchestrator_samples import NEVER_S, scripted_runtime

T = TypeVar("T")
Args = TypeVarTuple("Args")
P = ParamSpec("P")


class _VirtualTimeSelector(selectors.DefaultSelector):
    """Does not wait for timers: adds up how long it would have waited.

    While a thread works for the loop no virtual time passes: its end, which wakes the loop, is
    waited for. Otherwise a busy machine would let a timer fire before the thread is done.
    """

    waited_s = 0.0
    num_in_threads = 0

    def select(self, timeout: float | None = None) -> Any:
        has_work = timeout is not None and timeout <= 0
        waits = (timeout is None or self.num_in_threads > 0) and not has_work
        ready = super().select(None if waits else 0)
        if not ready and timeout is not None:
            self.waited_s += max(0.0, timeout)
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop with virtual time, which jumps to the next timer when there is no work."""

    def __init__(self) -> None:
        self._virtual_time = _VirtualTimeSelector()
        super().__init__(self._virtual_time)

    def time(self) -> float:
        return self._virtual_time.waited_s

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Args]], T], *args: *Args
    ) -> asyncio.Future[T]:
        ended = super().run_in_executor(executor, func, *args)
        self._virtual_time.num_in_threads += 1
        ended.add_done_callback(self._count_end)
        return ended

    def _count_end(self, _: asyncio.Future[Any]) -> None:
        self._virtual_time.num_in_threads -= 1


class LoopClock:
    """The running loop's own time, as the runtime's clock."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s())


def run_in_virtual_time(work: Coroutine[Any, Any, T]) -> T:
    """Run work on a new loop in virtual time, which begins at 0."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(work)


def in_virtual_time(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """A test on a loop in virtual time of its own, so that it can take no async fixture."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_in_virtual_time(test(*args, **kwargs))

    return run


@asynccontextmanager
async def timed_runtime(
    folder: Path,
    engine: ScriptedEngine | None = None,
    *,
    durable: bool = True,
    on_event: Listener | None = None,
) -> AsyncIterator[Runtime]:
    """A scripted runtime that uses the loop's virtual time."""
    async with scripted_runtime(
        folder, engine, clock=LoopClock(), durable=durable, on_event=on_event
    ) as runtime:
        yield runtime


def result_of(body: Flow[[], T]) -> RunResult[T]:
    """The result of a run of a flow in virtual time, with a store of its own."""

    async def run() -> RunResult[T]:
        with TemporaryDirectory() as folder:
            async with timed_runtime(Path(folder)) as runtime:
                return await runtime.run(body)

    return run_in_virtual_time(run())


async def never() -> None:
    await asyncio.sleep(NEVER_S)

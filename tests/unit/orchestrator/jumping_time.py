"""Event loops whose time jumps to what is due next: waiting takes no time, and is exact."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from orchestrator import Flow, Runtime
from orchestrator.events import Listener
from orchestrator.runtime.results import RunResult
from tests.unit.orchestrator.orchestrator_samples import NEVER_S, scripted_runtime

T = TypeVar("T")


class _JumpingSelector(selectors.DefaultSelector):
    """Does not wait for what is due later: says how long it would have."""

    waited_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(None if timeout is None else 0)
        if not ready and timeout is not None:
            self.waited_s += timeout
        return ready


class JumpingLoop(asyncio.SelectorEventLoop):
    """An event loop on which sleeping takes no time, and is on time to the nanosecond."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.waited_s


class LoopClock:
    """The running loop's own time, as the runtime's clock."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s())


def in_jumping_time(work: Coroutine[Any, Any, T]) -> T:
    """Do work on a loop of its own, whose time begins at 0."""
    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        return runner.run(work)


@asynccontextmanager
async def timed_runtime(
    folder: Path, *, durable: bool = True, on_event: Listener | None = None
) -> AsyncIterator[Runtime]:
    """A scripted runtime on the loop's own time."""
    async with scripted_runtime(
        folder, clock=LoopClock(), durable=durable, on_event=on_event
    ) as runtime:
        yield runtime


def comes_to(body: Flow[[], T]) -> RunResult[T]:
    """What a run of a flow comes to, in jumping time and a store of its own."""

    async def run() -> RunResult[T]:
        with TemporaryDirectory() as folder:
            async with timed_runtime(Path(folder)) as runtime:
                return await runtime.run(body)

    return in_jumping_time(run())


async def never() -> None:
    await asyncio.sleep(NEVER_S)

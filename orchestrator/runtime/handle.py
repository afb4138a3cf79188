"""A run that was started and not waited for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from orchestrator.cancellation import until_ended
from orchestrator.durability.outcomes import status_of
from orchestrator.events import Event
from store.records import Status

if TYPE_CHECKING:
    from orchestrator.runtime.results import RunResult

R = TypeVar("R")


class RunHandle(Generic[R]):
    """A run of this process. Awaiting it gives its RunResult, or raises what the run raised.

    Attributes:
        id: the run's.
    """

    def __init__(self, run_id: str, running: Awaitable[RunResult[R]]) -> None:
        self.id = run_id
        self._task: asyncio.Task[RunResult[R]] = asyncio.ensure_future(running)
        self._seen: list[Event] = []
        self._more = asyncio.Event()
        self._task.add_done_callback(lambda _: self._more.set())

    def __await__(self) -> Generator[Any, None, RunResult[R]]:
        return asyncio.shield(self._task).__await__()

    @property
    def status(self) -> Status:
        """Where it stands."""
        if not self._task.done():
            return Status.RUNNING
        if self._task.cancelled():
            return Status.CANCELLED
        return status_of(self._task.exception())

    def when_ended(self, then: Callable[[], None]) -> None:
        """Have something called once it has ended, in whatever way."""
        self._task.add_done_callback(lambda _: then())

    async def cancel(self) -> None:
        """End it, with all that runs in it; returns once that is recorded. Twice does no harm."""
        self._task.cancel()
        await until_ended([self._task])

    async def events(self) -> AsyncIterator[Event]:
        """All that happens in it, from its beginning to its end."""
        place = 0
        while True:
            while place < len(self._seen):
                yield self._seen[place]
                place += 1
            if self._task.done():
                return
            self._more.clear()
            await self._more.wait()

    def tell(self, event: Event) -> None:
        """Something happened in it."""
        self._seen.append(event)
        self._more.set()

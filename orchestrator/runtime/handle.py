"""RunHandle: a run that was started in the background."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from orchestrator.cancellation import until_ended
from orchestrator.display.run_log import RunLog
from orchestrator.durability.identity import is_within
from orchestrator.durability.outcomes import status_of, text_of
from orchestrator.errors import RunCancelled, RunInterrupted, WrongLoop
from orchestrator.events import Event, Listener, TextGenerated
from store.records import Status

if TYPE_CHECKING:
    from orchestrator.runtime.results import RunResult

logger = logging.getLogger("orchestrate")

R = TypeVar("R")


class RunHandle(Generic[R]):
    """A run of this process. Awaiting the handle returns its RunResult, or raises its error.

    Attributes:
        id: the run's id.
        log: what `timeline(handle)` draws; None until the run has begun.
    """

    def __init__(self, run_id: str, running: Awaitable[RunResult[R]]) -> None:
        self.id = run_id
        self.log: RunLog | None = None
        self._task: asyncio.Task[RunResult[R]] = asyncio.ensure_future(running)
        self._events: list[Event] = []
        self._keeps_text = False
        self._has_news = asyncio.Event()
        self._has_begun = asyncio.Event()
        self._task.add_done_callback(lambda _: self._has_news.set())
        self._task.add_done_callback(lambda _: self._has_begun.set())
        self._is_recorded = False
        self._is_seen = False
        self._error: BaseException | None = None
        self._task.add_done_callback(self._keep_error)

    def __await__(self) -> Generator[Any, None, RunResult[R]]:
        self._is_seen = True
        return asyncio.shield(self._task).__await__()

    @property
    def status(self) -> Status:
        """The run's current status."""
        if not self._task.done():
            return Status.RUNNING
        if self._task.cancelled() or isinstance(self._task.exception(), RunCancelled):
            return Status.CANCELLED
        return status_of(self._task.exception())

    async def begun(self) -> None:
        """Wait until the run's start is recorded: from then on it survives this process.

        Raises what the run raised if it ended before, such as DeadlineInfeasible.
        """
        await self._has_begun.wait()
        if not self._is_recorded:
            await self

    def when_ended(self, callback: Callable[[], None]) -> None:
        """Call `callback` once the run has ended, successfully or not."""
        self._task.add_done_callback(lambda _: callback())

    async def cancel(self) -> None:
        """Cancel the run; returns once its end is recorded. May be called again."""
        self._task.cancel()
        await until_ended([self._task])

    def events(self, *, text: bool = False) -> AsyncGenerator[Event, None]:
        """Iterate over the run's events, from its start to its end, however that comes.

        Any number of readers may do so, each at its own speed, also once the run has ended.

        Args:
            text: also yield a TextGenerated for each piece of text of the run's LLM calls. From
                this call of `events` on, such events are kept for all who ask for them; a call that
                is in progress gives its text at its end.
        """
        self._keeps_text = self._keeps_text or text
        return self._read(text)

    def text(self, step: str | None = None) -> AsyncGenerator[str, None]:
        """Iterate over the pieces of text of the run's LLM calls, as they arrive.

        It ends with the run, also if that failed: awaiting the handle raises the error.

        Args:
            step: only of calls within steps, or flows, of this name; None: of all.
        """
        if step is not None and not isinstance(step, str):
            raise TypeError(f"step= is the name of a step, not {step!r:.80}")
        return self._read_text(self.events(text=True), step)

    async def _read(self, text: bool) -> AsyncGenerator[Event, None]:
        if asyncio.get_running_loop() is not self._task.get_loop():
            raise WrongLoop(f"the handle of run {self.id}")
        index = 0
        while True:
            while index < len(self._events):
                event = self._events[index]
                index += 1
                if text or not isinstance(event, TextGenerated):
                    yield event
            if self._task.done():
                return
            self._has_news.clear()
            await self._has_news.wait()

    async def _read_text(
        self, events: AsyncGenerator[Event, None], step: str | None
    ) -> AsyncGenerator[str, None]:
        async with aclosing(events):
            async for event in events:
                if not isinstance(event, TextGenerated):
                    continue
                if step is None or is_within(event.path, step):
                    yield event.text

    def __repr__(self) -> str:
        return f"<RunHandle {self.id}: {self.status}>"

    def _repr_html_(self) -> str:
        """The timeline so far, for a notebook."""
        from orchestrator.display.run_html import handle_html

        return handle_html(self.id, self.status, None if self.log is None else self.log.timeline())

    def mark_begun(self) -> None:
        """The run's start is recorded; called by the runtime."""
        self._is_recorded = True
        self._has_begun.set()

    def _keep_error(self, task: asyncio.Task[Any]) -> None:
        """Keep the run's error, which asyncio would report with a traceback if nobody awaits it."""
        self._error = None if task.cancelled() else task.exception()

    def __del__(self) -> None:
        """Report in one line that a run has failed, if nobody has awaited its handle."""
        quiet = (RunCancelled, RunInterrupted)
        if self._error is not None and not self._is_seen and not isinstance(self._error, quiet):
            logger.warning("run %s failed: %s", self.id, text_of(self._error, _described))

    def publish(self, event: Event) -> None:
        """Add an event; called by the runtime."""
        self._events.append(event)
        self._has_news.set()

    def text_listener(self) -> Listener | None:
        """What takes TextGenerated; None as long as nobody has asked for text."""
        return self.publish if self._keeps_text else None


def _described(error: object) -> str:
    return f"{type(error).__name__}: {error}"

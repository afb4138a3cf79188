"""The tasks that write what a graph does, each after those that it depends on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from orchestrator.cancellation import until_ended
from orchestrator.execution.causality import frontier, own_task
from orchestrator.langgraph.dependencies import GraphPlace, Span, Spans


class RecordTasks:
    """Tasks of one recorder, on the loop of its run.

    Attributes:
        failure: what kept something from being recorded.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._writing: set[asyncio.Task[Any]] = set()
        self._answering: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Abort the calls that are being answered, and wait until all is written."""
        for task in self._answering:
            task.cancel()
        await until_ended(self._writing | self._answering)

    def span(self, entry: Spans, work: Callable[[], Awaitable[Any]]) -> Span:
        """Do the work of a call, which records it, once what it waited for is recorded."""
        span = Span(frozenset())

        async def run() -> Any:
            before = [each.task for each in entry if each.task is not None]
            if pending := [task for task in before if not task.done()]:
                await asyncio.wait(pending)
            span.nodes = frozenset[int]().union(*(each.nodes for each in entry))
            own_task(span.nodes)
            try:
                return await work()
            finally:
                span.nodes = frontier()

        span.task = asyncio.create_task(run())
        return span

    async def answered(self, span: Span) -> Any:
        """Wait for a call that is ours; cancelling aborts it."""
        assert span.task is not None, "it was made by `span`"
        _kept(span.task, self._answering)
        return await span.task

    def write(
        self, place: GraphPlace, work: Coroutine[Any, Any, Any] | asyncio.Task[Any] | None
    ) -> None:
        """Write what becomes of a place, without anybody waiting for it.

        It ends with the error of the place, if that has one; any other is a failure.
        """
        assert work is not None, "it was made by `span`"
        task = work if isinstance(work, asyncio.Task) else asyncio.create_task(work)

        def ended(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and error is not place.error and self.failure is None:
                self.failure = error

        task.add_done_callback(ended)
        _kept(task, self._writing)


def _kept(task: asyncio.Task[Any], among: set[asyncio.Task[Any]]) -> None:
    among.add(task)
    task.add_done_callback(among.discard)

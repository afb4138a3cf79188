"""The tasks that record what a graph does, each after the calls that it depends on."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from orchestrator.cancellation import until_ended
from orchestrator.execution.causality import frontier, own_task
from orchestrator.langgraph.dependencies import Activity, PendingCall, PendingCalls


class RecordTasks:
    """The tasks of one recorder, on the event loop of its run.

    Attributes:
        failure: the first error that kept something from being recorded.
    """

    def __init__(self) -> None:
        self.failure: BaseException | None = None
        self._recording: set[asyncio.Task[Any]] = set()
        self._answering: set[asyncio.Task[Any]] = set()

    async def close(self) -> None:
        """Abort the calls of our models, and wait until everything is recorded."""
        for task in self._answering:
            task.cancel()
        await until_ended(self._recording | self._answering)

    def begin_call(
        self, dependencies: PendingCalls, work: Callable[[], Awaitable[Any]]
    ) -> PendingCall:
        """Start a task that runs a call's work, which records it, after its dependencies."""
        call = PendingCall(frozenset())

        async def run() -> Any:
            before = [each.task for each in dependencies if each.task is not None]
            if pending := [task for task in before if not task.done()]:
                await asyncio.wait(pending)
            call.nodes = frozenset[int]().union(*(each.nodes for each in dependencies))
            own_task(call.nodes)
            try:
                return await work()
            finally:
                call.nodes = frontier()

        call.task = asyncio.create_task(run())
        return call

    async def wait_for_answer(self, call: PendingCall) -> Any:
        """Wait for the answer of one of our models; a cancellation aborts the call."""
        assert call.task is not None, "it was made by `begin_call`"
        _add_until_done(call.task, self._answering)
        return await call.task

    def record(
        self, activity: Activity, work: Coroutine[Any, Any, Any] | asyncio.Task[Any] | None
    ) -> None:
        """Run the work that records an activity; nothing waits for it before `close`.

        If the activity itself failed, the work ends with the same error. Any other error is
        a failure to record.
        """
        assert work is not None, "it was made by `begin_call`"
        task = work if isinstance(work, asyncio.Task) else asyncio.create_task(work)

        def ended(task: asyncio.Task[Any]) -> None:
            error = None if task.cancelled() else task.exception()
            if error is not None and error is not activity.error and self.failure is None:
                self.failure = error

        task.add_done_callback(ended)
        _add_until_done(task, self._recording)


def _add_until_done(task: asyncio.Task[Any], tasks: set[asyncio.Task[Any]]) -> None:
    tasks.add(task)
    task.add_done_callback(tasks.discard)

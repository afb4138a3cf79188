"""Tracks a runtime's tasks, so that they can be ended before the store is closed."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.cancellation import until_ended

GRACE_S = 0.5
"""If no task ends for this many seconds after the engine was closed, those left are cancelled: they
wait for something other than the engine."""


class TaskTracker:
    """The tasks that execute a runtime's runs, until they have ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Track a task until it ends."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """End all tasks and wait until they have ended. Called once the engine is closed.

        Tasks that wait for the engine end by themselves, with EngineClosed. The others, such as a
        running tool, a pause, or a question to a human, are cancelled. The calling task is left
        out: it may belong to a run that closes the runtime which was opened for it.

        Raises:
            CancelledError: the calling task was cancelled; all tasks have ended nevertheless.
        """
        try:
            while pending := self._others():
                ended, _ = await asyncio.wait(
                    pending, timeout=GRACE_S, return_when=asyncio.FIRST_COMPLETED
                )
                if not ended:
                    return
        finally:
            while pending := self._others():
                for task in pending:
                    task.cancel()
                await until_ended(pending)

    def _others(self) -> set[asyncio.Task[Any]]:
        own = asyncio.current_task()
        return {task for task in self._tasks if task is not own and not task.done()}

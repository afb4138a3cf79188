"""What is under way in a runtime, so that it can be ended before the store is closed."""

from __future__ import annotations

import asyncio
from typing import Any

from orchestrator.cancellation import until_ended

GRACE_S = 0.5
"""How long none may end before those that are left are cancelled: they wait for something else."""


class TaskTracker:
    """The tasks that do a runtime's runs, until they have ended."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def add(self, task: asyncio.Task[Any]) -> None:
        """Follow a task to its end."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end(self) -> None:
        """Have all of them end, and wait until they have. Called once the engine is closed.

        Those that wait for the engine end by themselves, and by name. The others, as a tool at
        work, a pause, or a question to a human, are cancelled. The task that calls this is not
        among them: it may be a run's own, which closes what was opened for it.

        Raises:
            CancelledError: the calling task was cancelled; they have ended all the same.
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

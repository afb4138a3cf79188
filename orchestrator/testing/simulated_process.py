"""A simulated process: the tasks that die with it, and how it ended."""

from __future__ import annotations

import asyncio
import contextvars
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True, eq=False)
class Process:
    """A simulated process that runs or resumes the run.

    Attributes:
        tasks: all that were created in it, in order.
        value: what the flow returned; meaningful if `error` is None.
        rivals: how many processes resumed the run at the same moment, this one included; 0 if
            there was nothing to resume.
    """

    number: int
    rivals: int
    task: asyncio.Task[None] | None = None
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)
    is_dead: bool = False
    value: object = None
    error: BaseException | None = None

    @property
    def is_live(self) -> bool:
        """Whether it has neither ended nor died."""
        return not self.is_dead and self.task is not None and not self.task.done()


current_process: ContextVar[Process | None] = ContextVar("simulated_process", default=None)


def tracked_task(
    loop: asyncio.AbstractEventLoop, work: Any, context: contextvars.Context | None = None
) -> asyncio.Task[Any]:
    """A new task, noted in the process of the code that creates it; a task factory of asyncio."""
    task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, context=context)
    process = current_process.get() if context is None else context.get(current_process)
    if process is not None:
        process.tasks.append(task)
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
    return task

"""Waiting that outlasts a cancellation: first what must be finished, then the cancellation."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Coroutine, Sequence
from typing import Any


async def until_ended(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Wait until all tasks have ended, in whatever way.

    Raises:
        CancelledError: the waiting task was cancelled meanwhile; they have ended all the same.
    """
    cancelled: asyncio.CancelledError | None = None
    pending = {task for task in tasks if not task.done()}
    while pending:
        try:
            _, pending = await asyncio.wait(pending)
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled


async def first_failure(tasks: Sequence[asyncio.Task[Any]]) -> BaseException | None:
    """Wait until all tasks have ended; where one fails, or this one is cancelled, end the others.

    asyncio.TaskGroup would lose count of this task's cancellations where one of its own fails
    (Python 3.11), and with it every deadline around it.

    Returns:
        The error of the task that failed first; None where none did.
    Raises:
        CancelledError: the waiting task was cancelled; the others have ended all the same.
    """
    for task in tasks:
        task.add_done_callback(_failure_of)  # seen, so that asyncio does not report it again
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failures = [_failure_of(task) for task in tasks]
    finally:
        for task in tasks:
            task.cancel()
        await until_ended(tasks)
    return next((failure for failure in failures if failure is not None), None)


async def run_to_completion(work: Coroutine[Any, Any, None]) -> None:
    """Do work to its end, even if the task that waits for it is cancelled meanwhile.

    Raises:
        CancelledError: the waiting task was cancelled; the work is done.
        And whatever the work raises, before any cancellation.
    """
    task = asyncio.create_task(work)
    try:
        await until_ended([task])
    finally:
        task.result()


async def let_the_deadline_pass() -> None:
    """A deadline that passed while nothing waited ends the task at the loop's next turns."""
    for _ in range(2):
        await asyncio.sleep(0)


def _failure_of(task: asyncio.Task[Any]) -> BaseException | None:
    """The error that ended a task, so far; a cancellation is none."""
    return task.exception() if task.done() and not task.cancelled() else None

"""Waiting that a cancellation does not cut short: the cancellation is raised afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextvars import copy_context
from typing import Any, TypeVar

R = TypeVar("R")


async def until_ended(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Wait until all tasks have ended, successfully or not.

    Raises:
        CancelledError: the waiting task was cancelled meanwhile; all tasks have ended nevertheless.
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


async def end_all(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks and wait until they have ended; raises as `until_ended`."""
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await until_ended(tasks)


async def first_failure(tasks: Sequence[asyncio.Task[Any]]) -> BaseException | None:
    """Wait until all tasks have ended; if one fails, or this task is cancelled, cancel the others.

    Not by asyncio.TaskGroup: in Python 3.11 it miscounts this task's cancellations when one of its
    tasks fails, so that the deadlines around it no longer work.

    Returns:
        The error of the task that failed first; None if none failed.
    Raises:
        CancelledError: the waiting task was cancelled; all tasks have ended nevertheless.
    """
    for task in tasks:
        task.add_done_callback(_failure_of)  # retrieved, so that asyncio does not log it
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        failures = [_failure_of(task) for task in tasks]
    finally:
        await end_all(tasks)
    return next((failure for failure in failures if failure is not None), None)


async def run_to_completion(work: Coroutine[Any, Any, None]) -> None:
    """Run work to its end, even if the task that waits for it is cancelled meanwhile.

    Raises:
        CancelledError: the waiting task was cancelled; the work is done.
        And what the work raises, in place of a cancellation.
    """
    task = asyncio.create_task(work)
    try:
        await until_ended([task])
    finally:
        task.result()


async def in_thread(work: Callable[[], R], *, on_cancel: Callable[[], None] | None = None) -> R:
    """The result of work in a thread, which is waited for also at a cancellation.

    Args:
        on_cancel: called at a cancellation, before the wait, for example to cut the work short.
    Raises:
        CancelledError: the waiting task was cancelled; the work is done.
    """
    working = asyncio.get_running_loop().run_in_executor(None, copy_context().run, work)
    try:
        return await asyncio.shield(working)
    except asyncio.CancelledError:
        if on_cancel is not None:
            on_cancel()
        await until_ended([working])
        working.exception()  # retrieved, so that asyncio does not log it
        raise


async def let_the_deadline_pass() -> None:
    """Let the event loop deliver the cancellation of a timeout that has already expired."""
    for _ in range(3):
        await asyncio.sleep(0)


def _failure_of(task: asyncio.Task[Any]) -> BaseException | None:
    """The error that ended a task; None if it is running, succeeded or was cancelled."""
    return task.exception() if task.done() and not task.cancelled() else None

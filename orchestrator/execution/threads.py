"""Threads for users' plain (not async) functions.

They do not use the event loop's thread pool. That pool is small, and the store and the learner
need it: a function that blocks for long must not delay them, nor keep the process from exiting.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar

from orchestrator.errors import WrongLoop

T = TypeVar("T")

MAX_THREADS = 256
"""Most threads that one event loop waits for at once; abandoned threads do not count."""

_semaphores: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}
_has_slot: ContextVar[bool] = ContextVar("orchestrate_has_thread_slot", default=False)


async def run_in_thread(work: Callable[[], T], *, name: str) -> T:
    """Run work in a new thread with a copy of the context; returns what it returns.

    If the task is cancelled, the thread is abandoned: it runs on, and its result is dropped.
    """
    async with _thread_slot():
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)
            try:
                loop.call_soon_threadsafe(ended.set)
            except RuntimeError:  # the loop is closed: nothing waits for the result
                return

        context = contextvars.copy_context()
        context.run(_has_slot.set, True)
        threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
        await ended.wait()
        return outcome.result()


def require_run_loop(loop: asyncio.AbstractEventLoop | None, what: str) -> None:
    """Make sure that a run's event loop is the running one.

    In a thread with a run's context, asyncio.run would execute the run's steps on another loop.

    Args:
        loop: the run's; None: the run is not bound to a loop.
        what: names the step in the error.
    Raises:
        WrongLoop: another loop is running.
    """
    if loop is not None and asyncio.get_running_loop() is not loop:
        raise WrongLoop(what)


@asynccontextmanager
async def _thread_slot() -> AsyncIterator[None]:
    """Hold one of the loop's MAX_THREADS slots.

    Work that already runs in a thread with a slot takes no second one, which could deadlock: all
    slots might be held by threads that wait for such work.
    """
    if _has_slot.get():
        yield
        return
    async with _semaphore_of(asyncio.get_running_loop()):
        yield


def _semaphore_of(loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
    """A loop's semaphore; entries of closed loops are removed, as they would keep them alive."""
    if loop not in _semaphores:
        for closed in [other for other in list(_semaphores) if other.is_closed()]:
            _semaphores.pop(closed, None)
        _semaphores[loop] = asyncio.Semaphore(MAX_THREADS)
    return _semaphores[loop]

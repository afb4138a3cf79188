"""Threads of their own for what users wrote without async.

The event loop's own pool is small, and the store and the learner need it: a function that blocks
for long must not make them wait, nor keep the process from exiting once nobody waits for it.
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

MOST_AT_ONCE = 256
"""Most threads that one event loop waits for; one that is left behind counts no more."""

_places: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}
_has_place: ContextVar[bool] = ContextVar("orchestrate_has_place", default=False)


async def run_in_thread(work: Callable[[], T], *, name: str) -> T:
    """Do work in a thread of its own, where the context is the same; returns what it returns.

    The thread is left behind where the task is cancelled.
    """
    async with _place():
        loop, ended = asyncio.get_running_loop(), asyncio.Event()
        outcome: concurrent.futures.Future[T] = concurrent.futures.Future()

        def run() -> None:
            try:
                outcome.set_result(work())
            except BaseException as error:
                outcome.set_exception(error)
            try:
                loop.call_soon_threadsafe(ended.set)
            except RuntimeError:  # the loop is closed: nobody waits any more
                return

        context = contextvars.copy_context()
        context.run(_has_place.set, True)
        threading.Thread(target=context.run, args=(run,), name=name, daemon=True).start()
        await ended.wait()
        return outcome.result()


def require_run_loop(loop: asyncio.AbstractEventLoop | None, what: str) -> None:
    """Make sure that a run's loop is the running one; None: of a run that knows none.

    In a thread that has a run's context, asyncio.run would do the run's work beside its loop.

    Raises:
        WrongLoop: it is another one.
    """
    if loop is not None and asyncio.get_running_loop() is not loop:
        raise WrongLoop(what)


@asynccontextmanager
async def _place() -> AsyncIterator[None]:
    """One of the loop's places; work within a thread that has one needs no other.

    It would wait for those who wait for it.
    """
    if _has_place.get():
        yield
        return
    async with _places_of(asyncio.get_running_loop()):
        yield


def _places_of(loop: asyncio.AbstractEventLoop) -> asyncio.Semaphore:
    """A loop's places; those of loops that are closed are forgotten, as they would keep them."""
    if loop not in _places:
        for closed in [other for other in list(_places) if other.is_closed()]:
            _places.pop(closed, None)
        _places[loop] = asyncio.Semaphore(MOST_AT_ONCE)
    return _places[loop]

"""Runs work on a given event loop, from other threads and from other loops."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar, cast

from anyio.from_thread import BlockingPortalProvider

from orchestrator.cancellation import until_ended
from orchestrator.errors import RunEnded, WouldBlock
from orchestrator.execution.context import current_context_or_none, set_context
from orchestrator.kept_runtime import opened_loop

T = TypeVar("T")

Work = Callable[[], Awaitable[T]]

_END = object()


def loop_of_run() -> asyncio.AbstractEventLoop | None:
    """The loop of the current run, else of the runtime that is open here; None without either."""
    context = current_context_or_none()
    return opened_loop() if context is None else context.run.loop


@contextmanager
def loop_for_sync_call(
    loop: asyncio.AbstractEventLoop | None = None,
) -> Iterator[asyncio.AbstractEventLoop]:
    """The loop on which a synchronous call does its work.

    That is the one given, else `loop_of_run()`, else one in a thread of its own. Concurrent calls
    share the latter, and with it the runtime that is opened there.
    """
    loop = loop or loop_of_run()
    if loop is not None:
        yield loop
        return
    with _portal as portal:
        yield portal.call(asyncio.get_running_loop)


def run_on_loop(loop: asyncio.AbstractEventLoop, what: str, work: Work[T]) -> T:
    """Run work on a loop of another thread, and wait for its result.

    Args:
        what: names the work in errors.
    Raises:
        WouldBlock: the loop is this thread's own.
        RunEnded: the work was cancelled, or the loop is closed.
        And what the work raises.
    """
    if _is_current(loop):
        raise WouldBlock(what)
    tasks: list[asyncio.Task[Any]] = []

    async def run() -> T:
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        context = current_context_or_none()
        if context is not None:  # the steps that a thread begins have a fixed order
            set_context(context.derive(owner=task))
        return await work()

    running = run()
    try:
        future = asyncio.run_coroutine_threadsafe(running, loop)
    except RuntimeError as error:  # the loop is closed
        running.close()
        raise RunEnded(what) from error
    try:
        return future.result()
    except concurrent.futures.CancelledError:
        raise RunEnded(what) from None
    except BaseException:
        if not future.done():  # such as KeyboardInterrupt: end the work before this thread returns
            future.cancel()
            asyncio.run_coroutine_threadsafe(until_ended(tasks), loop).result()
        raise


async def await_on_loop(loop: asyncio.AbstractEventLoop | None, work: Work[T]) -> T:
    """Run work on a loop, which may be another thread's, and await its result; None: this loop."""
    if loop is None or _is_current(loop):
        return await work()

    async def run() -> T:
        return await work()

    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(run(), loop))


def iterate_on_loop(
    loop: asyncio.AbstractEventLoop, what: str, items: AsyncGenerator[T, None]
) -> Iterator[T]:
    """Iterate over an async generator on a loop of another thread, and close it at the end.

    Raises as `run_on_loop`.
    """

    async def next_item() -> object:
        return await anext(items, _END)

    try:
        while (item := run_on_loop(loop, what, next_item)) is not _END:
            yield cast("T", item)
    finally:
        run_on_loop(loop, what, items.aclose)


def _is_current(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


_portal = BlockingPortalProvider()
"""An event loop in a thread of its own, which exists while a synchronous call needs it."""

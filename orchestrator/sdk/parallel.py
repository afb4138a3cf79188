"""gather and map: parallel branches of a run; if one fails, the others are cancelled."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable
from typing import Any, TypeVar, overload

from orchestrator.cancellation import first_failure
from orchestrator.execution.causality import frontier, own_task
from orchestrator.execution.context import (
    CallContext,
    current_context,
    current_worker,
    using_context,
)
from orchestrator.execution.recorded_values import begin_gather

T = TypeVar("T")
T1 = TypeVar("T1")
T2 = TypeVar("T2")
T3 = TypeVar("T3")


@overload
async def gather(first: Awaitable[T1], second: Awaitable[T2], /) -> tuple[T1, T2]: ...


@overload
async def gather(
    first: Awaitable[T1], second: Awaitable[T2], third: Awaitable[T3], /
) -> tuple[T1, T2, T3]: ...


@overload
async def gather(*branches: Awaitable[T]) -> tuple[T, ...]: ...


async def gather(*branches: Awaitable[Any]) -> tuple[Any, ...]:
    """Run branches in parallel and return their results in the order given.

    If one fails, the others are cancelled, and its error is raised once all have ended. Later calls
    depend on the calls of all branches.
    """
    try:
        context = begin_gather(current_context("gather()"), len(branches))
        step_paths = context.step_path.branches(len(branches))
        before = frontier()
        ends: list[frozenset[int]] = []

        async def run(branch: Awaitable[Any], here: CallContext) -> Any:
            own_task(before)
            try:
                with using_context(here.derive(owner=current_worker())):
                    value = await branch
                here.run.recorded_steps.require_no_more(here.step_path)
                return value
            finally:
                ends.append(frontier())

        tasks = [
            asyncio.create_task(
                run(branch, context.derive(step_path=step_path, stage_calls=len(branches)))
            )
            for branch, step_path in zip(branches, step_paths, strict=True)
        ]
        try:
            failure = await first_failure(tasks)
        finally:
            context.run.causality.join(ends)
    finally:
        for branch in branches:
            _discard(branch)
    if failure is not None:
        raise failure
    return tuple(task.result() for task in tasks)


async def map(  # noqa: A001 - the usual name
    work: Callable[[T1], Awaitable[T]], items: Iterable[T1], /, *, concurrency: int = 16
) -> tuple[T, ...]:
    """Do the same work for every item in parallel, and return the results in the items' order.

    If one fails, the others are cancelled, and its error is raised once all have ended.

    Args:
        concurrency: most items in progress at once, at least 1. The engine decides by itself how
            many of their calls it runs at once.
    """
    if concurrency < 1:
        raise ValueError(f"concurrency is {concurrency}; it must be at least 1")
    semaphore = asyncio.Semaphore(concurrency)

    async def process(item: T1) -> T:
        await semaphore.acquire()
        try:
            result = await work(item)
        except asyncio.CancelledError:
            semaphore.release()
            raise
        semaphore.release()  # not after a failure: the others are cancelled, and none may begin
        return result

    all_items = tuple(items)  # before any coroutine is made: the iteration may raise
    return await gather(*[process(item) for item in all_items])


def _discard(branch: Awaitable[Any]) -> None:
    """End a branch that never began; does nothing to one that has ended."""
    if inspect.iscoroutine(branch):
        branch.close()  # avoids the warning that it was never awaited
    elif asyncio.isfuture(branch):
        branch.cancel()

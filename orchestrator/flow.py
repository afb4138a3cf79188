"""flow, step and tool: plain async functions made known to the runtime."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, ParamSpec, TypeVar, overload

from orchestrator.calls import tool_call
from orchestrator.context import Position, at, current_or_none, moved
from orchestrator.durations import seconds_of
from orchestrator.errors import InvalidRunId
from orchestrator.events import StepStarted
from orchestrator.primitives import within

_RUN_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class Flow(Generic[P, R]):
    """An async function that runs as a recorded run, with a deadline.

    Awaiting it inside another flow makes it a step of that flow's run, in which its deadline can
    only shorten the run's; elsewhere it is a run of its own, in the runtime that is open, or in
    one opened for it.
    """

    body: Callable[P, Awaitable[R]]
    name: str
    deadline_s: float | None = None
    expected_stages: int | None = None
    run_id: str | None = None

    def options(
        self,
        *,
        deadline: str | float | None = None,
        stages: int | None = None,
        run_id: str | None = None,
    ) -> Flow[P, R]:
        """The same flow under another deadline, for another length, or for a run of a given id.

        Raises:
            InvalidDuration, InvalidRunId: as they say.
        """
        if run_id is not None and not _RUN_ID.fullmatch(run_id):
            raise InvalidRunId(run_id)
        return replace(
            self,
            deadline_s=self.deadline_s if deadline is None else seconds_of(deadline),
            expected_stages=stages or self.expected_stages,
            run_id=run_id or self.run_id,
        )

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the flow and return its result; raises what its body raises."""
        position = current_or_none()
        if position is not None:
            async with _entered(position, self.name):
                if self.deadline_s is None:
                    return await self.body(*args, **kwargs)
                async with within(self.deadline_s):
                    return await self.body(*args, **kwargs)
        from orchestrator.wiring import shared_runtime

        async with shared_runtime() as runtime:
            result = await runtime.run(self, *args, **kwargs)
        return result.value


@overload
def flow(body: Callable[P, Awaitable[R]], /) -> Flow[P, R]: ...


@overload
def flow(
    *,
    deadline: str | float | None = None,
    stages: int | None = None,
    name: str | None = None,
) -> Callable[[Callable[P, Awaitable[R]]], Flow[P, R]]: ...


def flow(
    body: Callable[..., Any] | None = None,
    /,
    *,
    deadline: str | float | None = None,
    stages: int | None = None,
    name: str | None = None,
) -> Any:
    """Make an async function a flow.

    Args:
        deadline: end to end, from the start of the run ("60s", or seconds); None: none.
        stages: how many stages of calls a run is expected to have, until that is learned.
        name: what runs are recorded under; the function's own name by default.
    Raises:
        InvalidDuration: the deadline is no positive time.
    """

    def decorate(body: Callable[P, Awaitable[R]]) -> Flow[P, R]:
        return Flow(
            body=body,
            name=name or _name_of(body),
            deadline_s=None if deadline is None else seconds_of(deadline),
            expected_stages=stages,
        )

    return decorate if body is None else decorate(body)


def step(body: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[None, None, R]]:
    """Make an async function a step: recorded under its call path, with its LLM calls.

    Outside a run it is the plain function. (Its coroutines are typed without Any, which would
    make a type checker forget the results of a gather.)
    """
    return _wrapped(body, _entered)


@overload
def tool(body: Callable[P, Coroutine[Any, Any, R]]) -> Callable[P, Coroutine[None, None, R]]: ...


@overload
def tool(body: Callable[P, R]) -> Callable[P, Coroutine[None, None, R]]: ...


def tool(body: Callable[P, Any]) -> Callable[P, Coroutine[None, None, Any]]:
    """Make a function a tool: recorded as one call of the run's graph.

    A plain function runs in a thread, so that it does not hold up the other branches. Outside a
    run it is the plain function.
    """
    if inspect.iscoroutinefunction(body):
        return _wrapped(body, _used)

    @functools.wraps(body)
    async def in_thread(*args: P.args, **kwargs: P.kwargs) -> Any:
        return await asyncio.to_thread(body, *args, **kwargs)

    return _wrapped(in_thread, _used)


def _wrapped(
    body: Callable[P, Awaitable[R]],
    around: Callable[[Position, str], AbstractAsyncContextManager[None]],
) -> Callable[P, Coroutine[None, None, R]]:
    name = _name_of(body)

    @functools.wraps(body)
    async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
        position = current_or_none()
        if position is None:
            return await body(*args, **kwargs)
        async with around(position, name):
            return await body(*args, **kwargs)

    return wrapper


@asynccontextmanager
async def _entered(position: Position, name: str) -> AsyncIterator[None]:
    """Run a block as a step: its start recorded before it, its end after."""
    run = position.run
    scope = position.scope.enter(name)
    await run.recorder.step_started(scope.path, name)
    error: BaseException | None = None
    with at(moved(position, scope=scope)):
        try:
            run.emit(StepStarted(run.id, scope.path, name, run.since_start_s()))
            yield
        except BaseException as caught:
            error = caught
            raise
        finally:
            await run.recorder.step_ended(scope.path, error)


@asynccontextmanager
async def _used(position: Position, name: str) -> AsyncIterator[None]:
    """Run a block as a tool's call."""
    with at(moved(position, scope=position.scope.enter(name))) as here:
        async with tool_call(here, name):
            yield


def _name_of(body: Callable[..., Any]) -> str:
    return str(getattr(body, "__name__", type(body).__name__)).replace("_", "-")

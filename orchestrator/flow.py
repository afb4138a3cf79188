"""flow, step and tool: plain async functions made known to the runtime."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from orchestrator.calls import run_tool_call
from orchestrator.context import Position, at, current_or_none
from orchestrator.durations import seconds_of
from orchestrator.errors import InvalidRunId
from orchestrator.events import StepStarted
from orchestrator.expiry import Expiry, OnDeadline
from orchestrator.once import StepSpec, done
from orchestrator.primitives import within
from orchestrator.retrying import Tries
from orchestrator.values import result_codec
from store.records import Effects, StepKind

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
    expiry: Expiry = field(default_factory=Expiry)

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
            return await self._as_step(position, args, kwargs)
        from orchestrator.wiring import shared_runtime

        async with shared_runtime() as runtime:
            result = await runtime.run(self, *args, **kwargs)
        return result.value

    async def _as_step(self, position: Position, args: Any, kwargs: Any) -> R:
        async def work(here: Position) -> R:
            run = here.run
            with at(here):
                run.emit(StepStarted(run.id, here.scope.path, self.name, run.since_start_s()))
                if self.deadline_s is None:
                    return await self.body(*args, **kwargs)
                async with within(self.deadline_s):
                    return await self.body(*args, **kwargs)

        spec = StepSpec(self.name, StepKind.STEP, result_codec(self.body, f"flow {self.name}"))
        return await done(position, spec, work)


@overload
def flow(body: Callable[P, Awaitable[R]], /) -> Flow[P, R]: ...


@overload
def flow(
    *,
    deadline: str | float | None = None,
    on_deadline: OnDeadline | None = None,
    wrap_up: Callable[[Any], Awaitable[Any]] | None = None,
    tail: str | float | None = None,
    stages: int | None = None,
    name: str | None = None,
) -> Callable[[Callable[P, Awaitable[R]]], Flow[P, R]]: ...


def flow(
    body: Callable[..., Any] | None = None,
    /,
    *,
    deadline: str | float | None = None,
    on_deadline: OnDeadline | None = None,
    wrap_up: Callable[[Any], Awaitable[Any]] | None = None,
    tail: str | float | None = None,
    stages: int | None = None,
    name: str | None = None,
) -> Any:
    """Make an async function a flow.

    Args:
        deadline: end to end, from the start of the run ("60s", or seconds); None: none.
        on_deadline: "fail" (the default without wrap_up), "wrap_up" or "best_so_far".
        wrap_up: makes the result when the deadline comes near, from the best so far.
        tail: how much of the deadline is kept for that ("5s"); None: a tenth.
        stages: how many stages of calls a run is expected to have, until that is learned.
        name: what runs are recorded under; the function's own name by default.
    Raises:
        InvalidDuration: the deadline or the tail is no positive time.
        ValueError: on_deadline and wrap_up do not go together.
    """
    expiry = Expiry(
        on_deadline or ("fail" if wrap_up is None else "wrap_up"),
        wrap_up,
        None if tail is None else seconds_of(tail),
    )

    def decorate(body: Callable[P, Awaitable[R]]) -> Flow[P, R]:
        return Flow(
            body=body,
            name=name or _name_of(body),
            deadline_s=None if deadline is None else seconds_of(deadline),
            expected_stages=stages,
            expiry=expiry,
        )

    return decorate if body is None else decorate(body)


@overload
def step(body: Callable[P, Awaitable[R]], /) -> Callable[P, Coroutine[None, None, R]]: ...


@overload
def step(
    *, retries: int = 0, timeout: str | float | None = None, name: str | None = None
) -> Callable[[Callable[P, Awaitable[R]]], Callable[P, Coroutine[None, None, R]]]: ...


def step(
    body: Callable[..., Any] | None = None,
    /,
    *,
    retries: int = 0,
    timeout: str | float | None = None,
    name: str | None = None,
) -> Any:
    """Make an async function a step: recorded under its call path, with its LLM calls.

    Once its result is recorded it is not done again: a resumed run has the result from there. So
    what a step does besides returning it, as to a list that it was given, is lost on resume.
    Outside a run it is the plain function. (Its coroutines are typed without Any, which would
    make a type checker forget the results of a gather.)

    Args:
        retries: how often it is tried again where it raises, after a growing pause; not where its
            run's deadline passed, or the runtime itself refuses.
        timeout: for each try ("10s", or seconds); one that takes longer raises DeadlineExceeded.
        name: what it is recorded under; the function's own name by default.
    Raises:
        InvalidDuration: the timeout is no positive time.
        ValueError: retries is below 0.
    """
    tries = Tries(retries, None if timeout is None else seconds_of(timeout))

    def decorate(body: Callable[P, Awaitable[R]]) -> Callable[P, Coroutine[None, None, R]]:
        known_as = name or _name_of(body)
        spec = StepSpec(known_as, StepKind.STEP, result_codec(body, f"step {known_as}"))

        @functools.wraps(body)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> R:
            position = current_or_none()
            if position is None:
                return await body(*args, **kwargs)

            async def work(here: Position) -> R:
                with at(here):
                    run = here.run
                    run.emit(StepStarted(run.id, here.scope.path, known_as, run.since_start_s()))
                    return await tries.of(lambda: body(*args, **kwargs))

            return await done(position, spec, work)

        return wrapper

    return decorate if body is None else decorate(body)


@overload
def tool(body: Callable[P, Coroutine[Any, Any, R]], /) -> Callable[P, Coroutine[None, None, R]]: ...


@overload
def tool(body: Callable[P, R], /) -> Callable[P, Coroutine[None, None, R]]: ...


@overload
def tool(
    *,
    effects: Literal["pure", "env", "external"] = "external",
    reconcile: Callable[..., Awaitable[Any]] | None = None,
) -> ToolDecorator: ...


def tool(
    body: Callable[..., Any] | None = None,
    /,
    *,
    effects: Literal["pure", "env", "external"] = "external",
    reconcile: Callable[..., Awaitable[Any]] | None = None,
) -> Any:
    """Make a function a tool: recorded as one call of the run's graph.

    A plain function runs in a thread, so that it does not hold up the other branches. Outside a
    run it is the plain function.

    Args:
        effects: what doing it twice would do: "pure": nothing; "env": the same to the run's own
            files; "external": something to the world outside, once more. A run that died in the
            middle of an external effect is resumed only if it can be reconciled.
        reconcile: finds out about an effect of which nobody knows whether it happened. Called
            with the tool's arguments, it returns Happened(result), or None if it did not.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., Coroutine[None, None, Any]]:
        name = _name_of(body)
        codec = result_codec(body, f"tool {name}")
        spec = StepSpec(name, StepKind.TOOL, codec, Effects(effects))
        is_async = inspect.iscoroutinefunction(body)

        @functools.wraps(body)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            async def work() -> Any:
                if is_async:
                    return await body(*args, **kwargs)
                return await asyncio.to_thread(body, *args, **kwargs)

            async def within(here: Position) -> Any:
                with at(here):
                    return await work()

            position = current_or_none()
            if position is None:
                return await work()
            own = spec
            if reconcile is not None:
                own = replace(spec, reconcile=functools.partial(reconcile, *args, **kwargs))
            return await run_tool_call(position, own, within)

        return wrapper

    return decorate if body is None else decorate(body)


class ToolDecorator(Protocol):
    """What `tool` with parameters gives."""

    @overload
    def __call__(
        self, body: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[None, None, R]]: ...

    @overload
    def __call__(self, body: Callable[P, R], /) -> Callable[P, Coroutine[None, None, R]]: ...

    def __call__(self, body: Any, /) -> Any:
        """Make a function a tool."""
        ...


def _name_of(body: Callable[..., Any]) -> str:
    return str(getattr(body, "__name__", type(body).__name__)).replace("_", "-")

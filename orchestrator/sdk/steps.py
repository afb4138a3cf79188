"""step and tool: decorators for functions with recorded results."""

from __future__ import annotations

import functools
import math
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

from orchestrator.durability.digests import CallDigest
from orchestrator.durability.identity import checked_name
from orchestrator.durability.values import result_codec
from orchestrator.durations import seconds_of
from orchestrator.execution.calls import run_tool_call
from orchestrator.execution.context import CallContext, current_context_or_none, using_context
from orchestrator.execution.step_cache import CacheLookup, cache_key, require_cacheable
from orchestrator.execution.step_execution import StepSpec, run_step
from orchestrator.sdk.functions import awaitable, name_of
from orchestrator.sdk.retries import Retries
from store.records import Effects, StepKind

P = ParamSpec("P")
R = TypeVar("R")


@overload
def step(body: Callable[P, Awaitable[R]], /) -> Callable[P, Coroutine[None, None, R]]: ...


@overload
def step(body: Callable[P, R], /) -> Callable[P, Coroutine[None, None, R]]: ...


@overload
def step(
    *,
    retries: int = 0,
    timeout: str | float | None = None,
    cache: bool | str | float = False,
    name: str | None = None,
) -> StepDecorator: ...


def step(
    body: Callable[..., Any] | None = None,
    /,
    *,
    retries: int = 0,
    timeout: str | float | None = None,
    cache: bool | str | float = False,
    name: str | None = None,
) -> Any:
    """Make a function a step: recorded under its call path, with its LLM calls.

    A step with a recorded result is not executed again: a resumed run uses that result.
    So other effects of a step, such as changing a list that it was given, are lost on resume.
    A plain function (not async) runs in a thread. A thread cannot be stopped: at a deadline it is
    abandoned. Outside a run a step is just the function. (Its coroutines are typed without Any,
    with which a type checker would lose the result types of a gather.)

    Args:
        retries: number of further tries after an error, with growing pauses; none after the run's
            deadline or after an error that another try would raise as well.
        timeout: of each try ("10s", or seconds); a try that takes longer raises DeadlineExceeded.
        cache: use the recorded result of an earlier run for the same arguments, code and model:
            True, or its maximum age ("1h", counted from that run's start).
        name: under which it is recorded; the function's own name by default.
    Raises:
        InvalidDuration: the timeout, or the age for `cache`, is not a positive time.
        ValueError: retries is below 0, or a cached step depends on more than its arguments.
    """
    tries = Retries(retries, None if timeout is None else seconds_of(timeout))
    max_age_s = _max_age_s(cache)

    def decorate(plain: Callable[P, Any]) -> Callable[P, Coroutine[None, None, Any]]:
        if max_age_s is not None:
            require_cacheable(plain)
        body, digest = awaitable(plain), CallDigest(plain)
        step_name = checked_name(name or name_of(plain))
        spec = StepSpec(step_name, StepKind.STEP, result_codec(plain, f"step {step_name}"))

        @functools.wraps(body)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            context = current_context_or_none()
            if context is None:
                return await body(*args, **kwargs)
            call_spec = replace(spec, arguments=digest.of(args, kwargs))
            if max_age_s is not None:
                key = cache_key(plain, args, kwargs, model=context.run.engine.info.model)
                call_spec = replace(call_spec, cache=CacheLookup(key, max_age_s))

            async def work(here: CallContext) -> Any:
                with using_context(here):
                    return await tries.run(lambda: body(*args, **kwargs))

            return await run_step(context, call_spec, work)

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
) -> StepDecorator: ...


def tool(
    body: Callable[..., Any] | None = None,
    /,
    *,
    effects: Literal["pure", "env", "external"] = "external",
    reconcile: Callable[..., Awaitable[Any]] | None = None,
) -> Any:
    """Make a function a tool: recorded as one call in the run's graph.

    A plain function (not async) runs in a thread, so that it does not block other branches. Outside
    a run a tool is just the function.

    Args:
        effects: what calling it twice does: "pure": nothing more; "env": the same again to the
            run's own files and shell; "external": a second effect on the outside world. If an
            external effect was interrupted, the run can only be resumed with `reconcile`.
        reconcile: finds out whether an interrupted external effect took place. Called with the
            tool's arguments, it returns Happened(result) if so, or None if not.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., Coroutine[None, None, Any]]:
        name = name_of(body)
        codec = result_codec(body, f"tool {name}")
        spec = StepSpec(name, StepKind.TOOL, codec, Effects(effects))
        digest = CallDigest(body)
        function, reconciler = awaitable(body), reconcile and awaitable(reconcile)

        @functools.wraps(body)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            async def work(here: CallContext) -> Any:
                with using_context(here):
                    return await function(*args, **kwargs)

            context = current_context_or_none()
            if context is None:
                return await function(*args, **kwargs)
            call_spec = replace(spec, arguments=digest.of(args, kwargs))
            if reconciler is not None:
                bound = functools.partial(reconciler, *args, **kwargs)
                call_spec = replace(call_spec, reconcile=bound)
            return await run_tool_call(context, call_spec, work)

        return wrapper

    return decorate if body is None else decorate(body)


class StepDecorator(Protocol):
    """The decorator that `step` and `tool` with parameters return."""

    @overload
    def __call__(
        self, body: Callable[P, Coroutine[Any, Any, R]], /
    ) -> Callable[P, Coroutine[None, None, R]]: ...

    @overload
    def __call__(self, body: Callable[P, R], /) -> Callable[P, Coroutine[None, None, R]]: ...

    def __call__(self, body: Any, /) -> Any:
        """Make a function a step or a tool."""
        ...


def _max_age_s(cache: bool | str | float) -> float | None:
    """The maximum age of a cached result, in seconds; None: no cache."""
    if cache is False:
        return None
    return math.inf if cache is True else seconds_of(cache)

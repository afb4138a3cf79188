"""step and tool: functions made known to the runtime, each recorded as it is done."""

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

    Once its result is recorded it is not done again: a resumed run has the result from there. So
    what a step does besides returning it, as to a list that it was given, is lost on resume.
    A plain function runs in a thread, which cannot be stopped: at a deadline it is left behind.
    Outside a run a step is the plain function. (Its coroutines are typed without Any, which would
    make a type checker forget the results of a gather.)

    Args:
        retries: how often it is tried again where it raises, after a growing pause; not where its
            run's deadline passed, or the runtime itself refuses.
        timeout: for each try ("10s", or seconds); one that takes longer raises DeadlineExceeded.
        cache: use the result that an earlier run recorded for the same arguments, code and model
            instead of doing it again: True, or for how long ("1h", from that run's start).
        name: what it is recorded under; the function's own name by default.
    Raises:
        InvalidDuration: the timeout, or the cache's, is no positive time.
        ValueError: retries is below 0, or a step that is to be cached depends on more than its
            arguments.
    """
    tries = Retries(retries, None if timeout is None else seconds_of(timeout))
    max_age_s = _max_age_s(cache)

    def decorate(plain: Callable[P, Any]) -> Callable[P, Coroutine[None, None, Any]]:
        if max_age_s is not None:
            require_cacheable(plain)
        body, digest = awaitable(plain), CallDigest(plain)
        known_as = checked_name(name or name_of(body))
        spec = StepSpec(known_as, StepKind.STEP, result_codec(body, f"step {known_as}"))

        @functools.wraps(body)
        async def wrapper(*args: P.args, **kwargs: P.kwargs) -> Any:
            context = current_context_or_none()
            if context is None:
                return await body(*args, **kwargs)
            own = replace(spec, arguments=digest.of(args, kwargs))
            if max_age_s is not None:
                key = cache_key(plain, args, kwargs, model=context.run.engine.info.model)
                own = replace(own, reuse=CacheLookup(key, max_age_s))

            async def work(here: CallContext) -> Any:
                with using_context(here):
                    return await tries.of(lambda: body(*args, **kwargs))

            return await run_step(context, own, work)

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
        name = name_of(body)
        codec = result_codec(body, f"tool {name}")
        spec = StepSpec(name, StepKind.TOOL, codec, Effects(effects))
        digest = CallDigest(body)
        doing, asking = awaitable(body), reconcile and awaitable(reconcile)

        @functools.wraps(body)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            async def within(here: CallContext) -> Any:
                with using_context(here):
                    return await doing(*args, **kwargs)

            context = current_context_or_none()
            if context is None:
                return await doing(*args, **kwargs)
            own = replace(spec, arguments=digest.of(args, kwargs))
            if asking is not None:
                own = replace(own, reconcile=functools.partial(asking, *args, **kwargs))
            return await run_tool_call(context, own, within)

        return wrapper

    return decorate if body is None else decorate(body)


class StepDecorator(Protocol):
    """What `step` and `tool` with parameters give."""

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
    """How old a result may be that is used again; None: none is."""
    if cache is False:
        return None
    return math.inf if cache is True else seconds_of(cache)

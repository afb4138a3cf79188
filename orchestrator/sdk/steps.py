"""step and tool: decorators for functions with recorded results."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, Literal, ParamSpec, Protocol, TypeVar, overload

from orchestrator.durability.callables import underlying
from orchestrator.durability.digests import CallDigest
from orchestrator.durability.identity import checked_name
from orchestrator.durability.values import result_codec
from orchestrator.durations import Duration, seconds_of
from orchestrator.environment.actions import Action, run_action
from orchestrator.environment.workspace_tools import (
    BoundCall,
    compensation,
    run_within,
    workspace_parameter,
)
from orchestrator.execution.calls import run_tool_call
from orchestrator.execution.context import CallContext, current_context_or_none, using_context
from orchestrator.execution.step_cache import CacheLookup, cache_key, require_cacheable
from orchestrator.execution.step_execution import StepSpec, run_step
from orchestrator.sdk.functions import awaitable, mark_recorded, name_of
from orchestrator.sdk.retries import Backoff, Retries
from store.records import Effects, StepKind

P = ParamSpec("P")
R = TypeVar("R")

Errors = type[Exception] | tuple[type[Exception], ...]
"""A class of errors, or several."""


@overload
def step(body: Callable[P, Awaitable[R]], /) -> Callable[P, Coroutine[None, None, R]]: ...


@overload
def step(body: Callable[P, R], /) -> Callable[P, Coroutine[None, None, R]]: ...


@overload
def step(
    *,
    retries: int = 0,
    retry_on: Errors | None = None,
    give_up_on: Errors = (),
    backoff: Backoff | None = None,
    timeout: Duration | None = None,
    cache: bool | Duration = False,
    name: str | None = None,
) -> StepDecorator: ...


def step(
    body: Callable[..., Any] | None = None,
    /,
    *,
    retries: int = 0,
    retry_on: Errors | None = None,
    give_up_on: Errors = (),
    backoff: Backoff | None = None,
    timeout: Duration | None = None,
    cache: bool | Duration = False,
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
        retry_on: errors after which it is tried again, one class or several; by default all.
        give_up_on: errors after which it is not.
        backoff: the first pause ("1s"), which doubles with each further try up to a hundredfold; or
            a function that gives each pause, called with the number of tries so far and the last
            one's error. By default pauses grow from 0.1 to 10 s.
        timeout: of each try ("10s", or seconds); a try that takes longer raises DeadlineExceeded.
        cache: use the recorded result of an earlier run for the same arguments, code and model:
            True, or its maximum age ("1h", counted from that run's start).
        name: under which it is recorded; the function's own name by default.
    Raises:
        InvalidDuration: the timeout, or the age for `cache`, is not a positive time.
        TypeError: retry_on or give_up_on is no class of errors.
        ValueError: retries is below 0, or 0 with an argument that needs it, or a cached step
            depends on more than its arguments.
    """
    tries = _tries(retries, timeout, retry_on, give_up_on, backoff)
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
                key = cache_key(plain, args, kwargs, model=context.run.engines.models)
                call_spec = replace(call_spec, cache=CacheLookup(key, max_age_s))

            async def work(here: CallContext) -> Any:
                with using_context(here):
                    return await tries.run(lambda: body(*args, **kwargs))

            return await run_step(context, call_spec, work)

        return mark_recorded(wrapper)

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
    compensate: Callable[..., Awaitable[Any]] | None = None,
    reads: Sequence[str] | None = None,
) -> StepDecorator: ...


def tool(
    body: Callable[..., Any] | None = None,
    /,
    *,
    effects: Literal["pure", "env", "external"] = "external",
    reconcile: Callable[..., Awaitable[Any]] | None = None,
    compensate: Callable[..., Awaitable[Any]] | None = None,
    reads: Sequence[str] | None = None,
) -> Any:
    """Make a function a tool: recorded as one call in the run's graph.

    A parameter annotated with Workspace gets the current one, unless the call gives one.

    A plain function (not async) runs in a thread, so that it does not block other branches. Outside
    a run a tool is just the function.

    Args:
        effects: what calling it twice does: "pure": nothing more; "env": the same again to the
            files and the shell of the workspace, which is brought back if the tool fails;
            "external": a second effect on the outside world. If an external effect was interrupted,
            the run can only be resumed with `reconcile`.
        reconcile: finds out whether an interrupted external effect took place. Called with the
            tool's arguments, it returns Happened(result) if so, or None if not.
        compensate: takes back an external effect when a workspace is brought back to a state before
            it; called with the tool's arguments.
        reads: the paths of the workspace that it reads, for whoever looks at the state graph.
    """

    def decorate(body: Callable[..., Any]) -> Callable[..., Coroutine[None, None, Any]]:
        name = name_of(body)
        codec = result_codec(body, f"tool {name}")
        spec = StepSpec(name, StepKind.TOOL, codec, Effects(effects))
        digest, parameter = CallDigest(body), workspace_parameter(body)
        acts = parameter is not None or effects == "env"
        if parameter is not None and not inspect.iscoroutinefunction(underlying(body)):
            raise TypeError(f"{name} works in a workspace, so it must be async: `async def {name}`")
        function, reconciler = awaitable(body), reconcile and awaitable(reconcile)
        compensator = compensate and awaitable(compensate)

        @functools.wraps(body)
        async def wrapper(*args: Any, **kwargs: Any) -> Any:
            context = current_context_or_none()
            call = BoundCall.bind(function, parameter, name, args, kwargs)
            arguments = digest.of(call.args, call.kwargs)
            call_spec = replace(spec, arguments=arguments)
            if reconciler is not None:
                bound = functools.partial(reconciler, *call.args, **call.kwargs)
                call_spec = replace(call_spec, reconcile=bound)
            workspace = call.workspace
            works_in = acts or effects == "external"
            if workspace is not None and works_in:
                undo = compensator and compensation(name, compensator, call, arguments)
                if workspace.position.is_acting and effects == "external":
                    return await run_within(context, call_spec, call, undo)
            if workspace is not None and works_in and not workspace.position.is_acting:
                action = Action(
                    call_spec,
                    repeat=None if effects == "external" else call.repeat,
                    compensate=undo,
                    reads=reads,
                    is_observed=acts,
                )
                return await run_action(context, workspace.position, action, call)
            if context is None:
                return await call()

            async def work(here: CallContext) -> Any:
                with using_context(here):
                    return await call()

            return await run_tool_call(context, call_spec, work)

        return mark_recorded(wrapper, acts_in_workspace=acts)

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


def _tries(
    retries: int,
    timeout: Duration | None,
    retry_on: Errors | None,
    give_up_on: Errors,
    backoff: Backoff | None,
) -> Retries:
    if not retries and (retry_on is not None or give_up_on != () or backoff is not None):
        raise ValueError("retry_on=, give_up_on= and backoff= need retries= above 0")
    if backoff is not None and not callable(backoff):
        seconds_of(backoff)  # refused when the step is defined
    return Retries(
        retries,
        None if timeout is None else seconds_of(timeout),
        retry_on=(Exception,) if retry_on is None else _classes(retry_on),
        give_up_on=_classes(give_up_on),
        backoff=backoff,
    )


def _classes(errors: Errors) -> tuple[type[Exception], ...]:
    classes = errors if isinstance(errors, tuple) else (errors,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise TypeError(f"{each!r} is no class of errors")
    return classes


def _max_age_s(cache: bool | Duration) -> float | None:
    """The maximum age of a cached result, in seconds; None: no cache."""
    if cache is False:
        return None
    return math.inf if cache is True else seconds_of(cache)

"""Users' functions, async or plain: made awaitable, named, and checked."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec, TypeVar

from orchestrator.durability.callables import applied, underlying
from orchestrator.execution.threads import run_in_thread

P = ParamSpec("P")
F = TypeVar("F", bound=Callable[..., Any])

_RECORDED = "_orchestrate_recorded"
_ACTING = "_orchestrate_acting"


def awaitable(body: Callable[P, Any]) -> Callable[P, Awaitable[Any]]:
    """The function itself if it is async; else an async function that runs it in a thread.

    The thread has a copy of the context, and does not block other branches of the run.

    Raises:
        TypeError: it is a generator function.
    """
    function = underlying(body)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{name_of(body)} is a generator, which cannot be recorded: collect the items that"
            " it yields in a list, and return the list"
        )
    if inspect.iscoroutinefunction(function):
        return body

    @functools.wraps(body)
    async def threaded(*args: P.args, **kwargs: P.kwargs) -> Any:
        work = functools.partial(body, *args, **kwargs)
        result = await run_in_thread(work, name=name_of(body))
        return await result if inspect.isawaitable(result) else result

    return threaded


def mark_recorded(function: F, *, acts_in_workspace: bool = False) -> F:
    """Note on a function that its calls are recorded, and are actions of a workspace if so."""
    setattr(function, _RECORDED, True)
    setattr(function, _ACTING, acts_in_workspace)
    return function


def records_itself(function: Callable[..., Any]) -> bool:
    """Whether the calls of a function are recorded: it is a step or a tool."""
    return getattr(function, _RECORDED, False) is True


def acts_in_workspace(function: Callable[..., Any]) -> bool:
    """Whether the calls of a function are actions of a workspace, of which one runs at a time."""
    return getattr(function, _ACTING, False) is True


def name_of(body: Callable[..., Any]) -> str:
    """The name under which a function's steps are recorded by default.

    That of a partial's function; that of the class of an object with `__call__`.
    """
    plain, _, _ = applied(body, (), {})
    return str(getattr(plain, "__name__", type(plain).__name__)).replace("_", "-")


def require_no_method(body: Callable[..., Any]) -> None:
    """Refuse a method: a resumed run could not know its instance.

    Raises:
        TypeError: its first parameter is `self`.
    """
    if inspect.isfunction(body) and next(iter(inspect.signature(body).parameters), "") == "self":
        raise TypeError(
            f"{name_of(body)} is a method, but a flow must be a function: a resumed run would not"
            " know the instance. Pass what it needs as arguments; steps and tools may be methods"
        )

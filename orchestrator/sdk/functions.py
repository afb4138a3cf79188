"""What users decorate: plain functions and async ones, and what they are called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec

from orchestrator.execution.threads import run_in_thread

P = ParamSpec("P")


def awaitable(body: Callable[P, Any]) -> Callable[P, Awaitable[Any]]:
    """The function itself, if it is async; else one that does it in a thread, where the context
    is the same, so that it does not hold up the other branches.

    Raises:
        TypeError: it is a generator function.
    """
    called = getattr(body, "__call__", body)  # noqa: B004 - an object's, which may be async
    for one in (body, called):
        if inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one):
            raise TypeError(
                f"{name_of(body)} yields, and what yields bit by bit cannot be recorded: collect"
                " what it yields in a list, and return that"
            )
    if inspect.iscoroutinefunction(body) or inspect.iscoroutinefunction(called):
        return body

    @functools.wraps(body)
    async def threaded(*args: P.args, **kwargs: P.kwargs) -> Any:
        work = functools.partial(body, *args, **kwargs)
        came = await run_in_thread(work, name=name_of(body))
        return await came if inspect.isawaitable(came) else came

    return threaded


def name_of(body: Callable[..., Any]) -> str:
    """As steps of it are recorded, unless they are given a name."""
    return str(getattr(body, "__name__", type(body).__name__)).replace("_", "-")


def require_no_method(body: Callable[..., Any]) -> None:
    """Refuse what is to be called on an instance, which no record keeps.

    Raises:
        TypeError: its first parameter is `self`.
    """
    if inspect.isfunction(body) and next(iter(inspect.signature(body).parameters), "") == "self":
        raise TypeError(
            f"{name_of(body)} is a method, and a flow is a function: a run that is resumed would"
            " not know of which instance. Give it what it needs as arguments; steps and tools may"
            " be methods"
        )

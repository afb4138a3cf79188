"""What users decorate: plain functions and async ones, and what they are called."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec

P = ParamSpec("P")


def awaitable(body: Callable[P, Any]) -> Callable[P, Awaitable[Any]]:
    """The function itself, if it is async; else one that does it in a thread, where the context
    is the same, so that it does not hold up the other branches."""
    if inspect.iscoroutinefunction(body) or inspect.iscoroutinefunction(
        getattr(body, "__call__", None)  # noqa: B004 - an object whose call is async
    ):
        return body

    @functools.wraps(body)
    async def threaded(*args: P.args, **kwargs: P.kwargs) -> Any:
        came = await asyncio.to_thread(body, *args, **kwargs)
        return await came if inspect.isawaitable(came) else came

    return threaded


def name_of(body: Callable[..., Any]) -> str:
    """As steps of it are recorded, unless they are given a name."""
    return str(getattr(body, "__name__", type(body).__name__)).replace("_", "-")

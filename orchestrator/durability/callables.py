"""The functions behind callables: those of partials and of objects with `__call__`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def underlying(body: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a callable calls, which has its name, annotations and kind.

    Args:
        body: a function, method or class, which is returned itself; a partial of any callable; an
            object with `__call__`, whose method is returned.
    """
    body, _, _ = applied(body, (), {})
    if inspect.isclass(body) or hasattr(body, "__code__") or hasattr(body, "__wrapped__"):
        return body
    method: Callable[..., Any] = getattr(body, "__call__", body)  # noqa: B004 - may be async
    return method if hasattr(method, "__code__") or hasattr(method, "__wrapped__") else body


def applied(
    body: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], Sequence[Any], Mapping[str, Any]]:
    """A call of a partial as the same call of the function that it binds arguments of."""
    while isinstance(body, functools.partial):
        args = (*body.args, *args)
        kwargs = {**body.keywords, **kwargs}
        body = body.func
    return body, args, kwargs

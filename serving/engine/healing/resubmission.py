"""Requests of an engine that dies: submitted again if nothing of their answer was given out."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import TypeVar

from serving.errors import AnswerLost, RequestDropped, RequestFailed
from serving.slo import Slo, patience_s

T = TypeVar("T")


def max_submissions(restarts: int) -> int:
    """How often a request is submitted if the engine may be started again so many times.

    A request that kills the engine each time ends before the engine does, from two restarts on.
    """
    return max(restarts, 2)


async def until_begun(
    submit: Callable[[], AsyncGenerator[T, None]],
    request_id: str,
    *,
    death: type[Exception],
    limit: int,
) -> AsyncGenerator[T, None]:
    """The outputs of a request, which is submitted again if the engine dies before the first one.

    Args:
        submit: gives the outputs of one submission; it waits until there is an engine.
        death: what the outputs raise if the engine dies, and is started again.
        limit: most submissions.
    Raises:
        AnswerLost: the engine died after the first output.
        RequestFailed: it died in each submission.
    """
    for _ in range(limit):
        has_begun = False
        async with aclosing(submit()) as outputs:
            try:
                async for output in outputs:
                    has_begun = True
                    yield output
                return
            except death as error:
                if has_begun:
                    reason = "the engine died; send the request again"
                    raise AnswerLost(request_id, reason) from error
    reason = f"the engine died each of the {limit} times that it had this request"
    raise RequestFailed(request_id, reason)


TURN_S = 0.05
"""An engine that runs is there after a turn or two of the event loop, which take so long at most on
a busy machine. A shorter patience than that is the scheduler's to judge."""


async def within_patience(engine: Awaitable[T], request_id: str, slo: Slo, *, spent_s: float) -> T:
    """The engine, once it runs again.

    Args:
        spent_s: seconds since the request's arrival.
    Raises:
        RequestDropped: the SLO asks to drop the request before.
    """
    limit_s = patience_s(slo)
    try:
        async with asyncio.timeout(None if limit_s == math.inf else max(limit_s - spent_s, TURN_S)):
            return await engine
    except TimeoutError as error:
        reason = f"no engine within {limit_s:g} s: it died, and is being started again"
        raise RequestDropped(request_id, reason) from error

"""Sends a request with what it carries, whichever client has made it.

`forward` is the client's own way to send a request: a transport's, or the client's. Requests and
responses are those of httpx or httpx2.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from orchestrator.execution.carried_slo import CarriedSlo
from orchestrator.execution.context import CallContext
from orchestrator.execution.step_execution import require_time
from orchestrator.slo_http.body import with_tags
from orchestrator.slo_http.own_servers import OwnServers, identity_request, log_unidentified
from orchestrator.slo_http.time_limit import (
    Timeouts,
    limit_stream,
    until_deadline,
    until_deadline_in_thread,
)


async def send(
    request: Any,
    forward: Callable[[Any], Awaitable[Any]],
    *,
    root: str,
    carried: CarriedSlo,
    servers: OwnServers,
) -> Any:
    """The response to a request, which ends at the deadline and, if the server is ours, has tags.

    Args:
        root: of the API to which it goes.
    Raises:
        CancelledError: the deadline passed.
        And what `forward` raises.
    """
    await require_time(carried.context)
    _set_trace(request, carried.context)
    async with until_deadline(carried):
        if await is_ours(request, forward, root=root, servers=servers):
            request = with_tags(request, carried.now())
        response = await forward(request)
    servers.learn(root, response)
    return limit_stream(response, carried)


def send_in_thread(
    request: Any,
    forward: Callable[[Any], Any],
    *,
    root: str,
    carried: CarriedSlo,
    servers: OwnServers,
) -> Any:
    """As `send`, for code that is not async."""
    _set_trace(request, carried.context)
    with until_deadline_in_thread(carried):
        if is_ours_in_thread(request, forward, root=root, servers=servers):
            request = with_tags(request, carried.now())
        if carried.has_deadline:
            timeouts = request.extensions.get("timeout") or {}
            request.extensions["timeout"] = Timeouts(timeouts, carried.context)
        response = forward(request)
    servers.learn(root, response)
    return limit_stream(response, carried)


async def is_ours(
    request: Any, forward: Callable[[Any], Awaitable[Any]], *, root: str, servers: OwnServers
) -> bool:
    """Whether the server to which a request goes is ours; it is asked if that is not known."""
    known = servers.known(root)
    if known is not None:
        return known
    try:
        response = await forward(identity_request(root, request))
        await response.aclose()
    except Exception as error:
        log_unidentified(root, error)
        return False
    return servers.learn(root, response)


def is_ours_in_thread(
    request: Any, forward: Callable[[Any], Any], *, root: str, servers: OwnServers
) -> bool:
    """As `is_ours`, for code that is not async."""
    known = servers.known(root)
    if known is not None:
        return known
    try:
        response = forward(identity_request(root, request))
        response.close()
    except Exception as error:
        log_unidentified(root, error)
        return False
    return servers.learn(root, response)


def _set_trace(request: Any, context: CallContext) -> None:
    """Make the server's spans children of the call's, unless the client has said which span's."""
    if "traceparent" not in request.headers:
        headers = context.run.trace_headers(context.run.id, context.step_path.text)
        request.headers.update(headers)

"""HTTP clients with which an OpenAI client in a run carries the deadline to our server.

    from openai import AsyncOpenAI
    from orchestrator.openai_client import slo_http_client

    client = AsyncOpenAI(base_url="http://127.0.0.1:8000/v1", http_client=slo_http_client())

Within a run, requests to /v1/chat/completions, /v1/completions and /v1/responses carry the tags
that `slo_tags` returns, unless they have tags already, and end at the deadline: the connection is
closed, and our server aborts the request. The code that awaits it is cancelled. Servers other than
ours get no tags; to know which one it is, a server is asked for its models, once. Everything else,
and all outside a run, passes unchanged.

Importing this loads openai, which `import orchestrator` does not.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol

import httpx2
from openai import DefaultAsyncHttpxClient, DefaultHttpxClient

from orchestrator.execution.carried_slo import carried_slo, carried_slo_in_thread
from orchestrator.slo_http.body import api_root
from orchestrator.slo_http.own_servers import OwnServers
from orchestrator.slo_http.sending import send, send_in_thread

__all__ = ["SloTransport", "SyncSloTransport", "slo_http_client", "sync_slo_http_client"]


def slo_http_client(**options: Any) -> httpx2.AsyncClient:
    """The `http_client` of an AsyncOpenAI, or the `http_async_client` of a ChatOpenAI.

    Args:
        options: of `openai.DefaultAsyncHttpxClient`, which are those of an AsyncClient.
    """
    return _AsyncClient(**options)


def sync_slo_http_client(**options: Any) -> httpx2.Client:
    """The `http_client` of an OpenAI or of a ChatOpenAI, for calls that are not async.

    A request ends at the deadline, but not if its run is cancelled before: its thread runs on.

    Args:
        options: of `openai.DefaultHttpxClient`, which are those of a Client.
    """
    return _Client(**options)


class AsyncTransport(Protocol):
    """An AsyncBaseTransport of httpx2, or of httpx."""

    async def handle_async_request(self, request: Any, /) -> Any:
        """The response to a request."""
        ...

    async def aclose(self) -> None:
        """Close its connections."""
        ...


class SyncTransport(Protocol):
    """A BaseTransport of httpx2, or of httpx."""

    def handle_request(self, request: Any, /) -> Any:
        """The response to a request."""
        ...

    def close(self) -> None:
        """Close its connections."""
        ...


class SloTransport(httpx2.AsyncBaseTransport):
    """Does the same for an AsyncClient of your own, of httpx2 or httpx: its `transport`.

    Args:
        transport: that sends the requests; None: one of httpx2 with default options.
    """

    def __init__(self, transport: AsyncTransport | None = None) -> None:
        self._transport = transport or httpx2.AsyncHTTPTransport()
        self._servers = OwnServers()

    async def handle_async_request(self, request: Any) -> Any:
        """The response to a request; raises CancelledError at the deadline."""
        return await _send(request, self._transport.handle_async_request, self._servers)

    async def aclose(self) -> None:
        """Close the transport's connections."""
        await self._transport.aclose()


class SyncSloTransport(httpx2.BaseTransport):
    """As SloTransport, for a Client.

    Args:
        transport: that sends the requests; None: one of httpx2 with default options.
    """

    def __init__(self, transport: SyncTransport | None = None) -> None:
        self._transport = transport or httpx2.HTTPTransport()
        self._servers = OwnServers()

    def handle_request(self, request: Any) -> Any:
        """The response to a request; raises CancelledError at the deadline."""
        return _send_in_thread(request, self._transport.handle_request, self._servers)

    def close(self) -> None:
        """Close the transport's connections."""
        self._transport.close()


class _AsyncClient(DefaultAsyncHttpxClient):
    """Wraps `send`, not the transport: so proxies of the environment work as before."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._servers = OwnServers()

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        async def forward(changed: httpx2.Request) -> httpx2.Response:
            return await super(_AsyncClient, self).send(changed, **options)

        response: httpx2.Response = await _send(request, forward, self._servers)
        return response


class _Client(DefaultHttpxClient):
    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._servers = OwnServers()

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        def forward(changed: httpx2.Request) -> httpx2.Response:
            return super(_Client, self).send(changed, **options)

        response: httpx2.Response = _send_in_thread(request, forward, self._servers)
        return response


async def _send(request: Any, forward: Callable[[Any], Awaitable[Any]], servers: OwnServers) -> Any:
    root = api_root(request)
    carried = None if root is None else await carried_slo()
    if root is None or carried is None:
        return await forward(request)
    return await send(request, forward, root=root, carried=carried, servers=servers)


def _send_in_thread(request: Any, forward: Callable[[Any], Any], servers: OwnServers) -> Any:
    root = api_root(request)
    carried = None if root is None else carried_slo_in_thread()
    if root is None or carried is None:
        return forward(request)
    return send_in_thread(request, forward, root=root, carried=carried, servers=servers)

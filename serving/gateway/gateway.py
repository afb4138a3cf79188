"""The gateway as a server: from its start to the end of its last stream."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    contextmanager,
    nullcontext,
    suppress,
)
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from aiohttp import web

from serving.engine.server.api_keys import ApiKey
from serving.engine.server.listening import cannot_listen, check_port
from serving.errors import InvalidEngineConfig
from serving.gateway.access import MAX_HEADER_BYTES, GatewayAccess
from serving.gateway.attempt import error_response
from serving.gateway.fleet_state import Fleet
from serving.gateway.forwarding import BeginSpan, Forwarder
from serving.gateway.metrics import GatewayMetrics
from serving.gateway.operator_pages import OperatorPages
from serving.gateway.polling import Poller
from serving.gateway.replica_state import ReplicaState
from serving.router.table import DEFAULT_ROUTER, RouterSpec

if TYPE_CHECKING:
    from opentelemetry.trace import Tracer

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8080
DEFAULT_DRAIN_S = 30.0
"""Seconds that open streams have after SIGTERM; Kubernetes kills after 30 s by default."""

MAX_BODY_BYTES = 64 << 20
"""Limit on the body of a request, as that of `orchestrate serve`."""

IDLE_S = 20.0
"""Limit on a connection without a complete request: from its start, or from its last answer."""

BACKLOG = 1024
"""Connections that wait to be accepted: a burst of clients."""

CUT_S = 2.0
"""Seconds for the error events of streams that are left after the drain."""

_DRAIN_CHECK_S = 0.05

NOT_FORWARDED = frozenset({"/v1/load_lora_adapter", "/v1/unload_lora_adapter"})
"""Paths that change one replica: they are for its operator."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """The settings of a gateway.

    Attributes:
        urls: the replicas' addresses at the start (`Gateway.set_replicas`).
        router: chooses between them; of several it chooses, a request goes to the one at which
            its turn comes first (`turns`).
        keys: those that clients may send, without any none is needed. They are passed on.
        api_key: sent to the replicas with what the gateway itself asks.
        drain_s: seconds that open requests have after a signal.
    Raises:
        InvalidEngineConfig: a value is out of range.
    """

    urls: Sequence[str]
    router: RouterSpec = field(default_factory=lambda: gateway_router(DEFAULT_ROUTER, {}))
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    keys: Sequence[ApiKey] = ()
    api_key: str | None = None
    drain_s: float = DEFAULT_DRAIN_S

    def __post_init__(self) -> None:
        if not 0 <= self.port <= 65535:
            raise InvalidEngineConfig("port", self.port, "must be from 0 to 65535")
        if not self.drain_s >= 0:
            raise InvalidEngineConfig("drain_s", self.drain_s, "must be at least 0")


def gateway_router(name: str, params: dict[str, bool | int | float | str]) -> RouterSpec:
    """A router with its parameters, by default with early binding and programs that stay.

    Raises:
        InvalidEngineConfig: an unknown router, or a parameter or value that it does not take.
    """
    own = {"late": False, "stay": True} if name == "power_of_k" else {}
    return RouterSpec(name, own | params)


class Gateway:
    """A running gateway; belongs to the event loop that creates it.

    Args:
        tracer: makes spans of requests, if there is one.
    Attributes:
        fleet: the replicas as it knows them.
    """

    def __init__(self, settings: GatewaySettings, tracer: Tracer | None = None) -> None:
        self._settings = settings
        self.fleet = Fleet(settings.urls, settings.router.build())
        metrics = GatewayMetrics(self.fleet, time.monotonic)
        self._access = GatewayAccess(settings.keys, settings.host)
        self._pages = OperatorPages(self.fleet, metrics, self._access, time.monotonic)
        self._forwarder = Forwarder(self.fleet, metrics, time.monotonic, _span_of(tracer))
        self._pollers: dict[ReplicaState, _Polling] = {}
        self._stack = AsyncExitStack()
        self._site: web.TCPSite | None = None
        self._is_stopping = False

    @property
    def num_answering(self) -> int:
        """Number of replicas that answered their last poll."""
        now_s = time.monotonic()
        return sum(not each.is_suspect(now_s) for each in self.fleet.replicas)

    async def start(self) -> int:
        """Ask the replicas once, then listen; returns the port.

        Raises:
            InvalidEngineConfig: nothing can listen at the address.
        """
        settings = self._settings
        self._stack.push_async_callback(self._forwarder.close)
        self._stack.push_async_callback(self._stop_polling, ())
        await self.set_replicas(settings.urls)
        server = web.Server(
            self._handle,
            request_factory=_request,
            handler_cancellation=True,
            access_log=None,
            keepalive_timeout=IDLE_S,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
            auto_decompress=False,
        )
        runner = web.ServerRunner(server, shutdown_timeout=CUT_S)
        await runner.setup()
        self._stack.push_async_callback(runner.cleanup)
        self._site = web.TCPSite(runner, settings.host, settings.port, backlog=BACKLOG)
        try:
            await self._site.start()
        except OSError as error:
            raise cannot_listen(settings.host, settings.port, error) from error
        return int(runner.addresses[0][1])

    async def set_replicas(self, urls: Sequence[str]) -> None:
        """Have these replicas from now on; returns when the new ones were asked once.

        Requests that are at one which is no longer there are answered by it.

        Raises:
            InvalidEngineConfig: an address is invalid, or given twice.
        """
        self.fleet.set_replicas(urls)
        await self._stop_polling(self.fleet.replicas)
        added = {
            each: Poller(each, api_key=self._settings.api_key, now_s=time.monotonic)
            for each in self.fleet.replicas
            if each not in self._pollers
        }
        await asyncio.gather(*(poller.poll() for poller in added.values()))
        for replica, poller in added.items():
            self._pollers[replica] = _Polling(poller, asyncio.create_task(poller.run()))

    async def _stop_polling(self, remaining: Collection[ReplicaState]) -> None:
        for replica in self._pollers.keys() - remaining:
            poller, task = self._pollers.pop(replica)
            await _cancel(task)
            await poller.close()

    async def stop(self) -> None:
        """Accept nothing more, wait for open requests at most `drain_s`, and close; idempotent."""
        self._is_stopping = True
        site, self._site = self._site, None
        if site is not None:
            await site.stop()
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.drain_s):
                await self._until_answered()
        self._forwarder.cut_off()
        with suppress(TimeoutError):
            async with asyncio.timeout(CUT_S):
                await self._until_answered()
        await self._stack.aclose()

    async def _until_answered(self) -> None:
        while self._forwarder.num_open:  # noqa: ASYNC110 (a counter has no event)
            await asyncio.sleep(_DRAIN_CHECK_S)

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        with self._access.enter(request) as refusal:
            response = refusal or await self._answer(request)
            if self._is_stopping and not response.prepared:
                response.force_close()
            return response

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        if self._is_stopping:
            return error_response(503, "the gateway is stopping", kind="stopping")
        page = self._pages.find(request)
        if page is not None:
            return page(request)
        if request.method == "POST" and is_forwarded(request.raw_path):
            return await self._forwarder.forward(request)
        message = f"the gateway has no {request.method} {request.path}"
        return error_response(404, message, kind="not_found")


class _Polling(NamedTuple):
    poller: Poller
    task: asyncio.Task[None]


def is_forwarded(raw_path: str) -> bool:
    """Whether a replica answers requests to this path; one with dots could lead anywhere."""
    path = raw_path.partition("?")[0]
    return path.startswith("/v1/") and "/." not in path and path not in NOT_FORWARDED


def run_gateway(
    settings: GatewaySettings,
    on_ready: Callable[[Gateway, int], None],
    tracing: AbstractAsyncContextManager[Tracer | None] | None = None,
) -> None:
    """Run a gateway until SIGINT or SIGTERM; runs on the main thread, and blocks.

    Args:
        tracing: gives the tracer of requests' spans, and exports the last ones at its end.
        on_ready: called with the gateway and its port once it listens.
    Raises:
        InvalidEngineConfig: it cannot listen on this host and port.
    """
    import uvloop

    if settings.port:
        check_port(settings.host, settings.port)
    uvloop.run(_run(settings, on_ready, tracing or nullcontext()))


async def _run(
    settings: GatewaySettings,
    on_ready: Callable[[Gateway, int], None],
    tracing: AbstractAsyncContextManager[Tracer | None],
) -> None:
    async with tracing as tracer:
        gateway = Gateway(settings, tracer)
        try:
            with stop_signals() as stopped:
                on_ready(gateway, await gateway.start())
                await stopped.wait()
        finally:
            await gateway.stop()


@contextmanager
def stop_signals() -> Iterator[asyncio.Event]:
    """An event that SIGINT and SIGTERM set; after this a signal ends the process at once."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    try:
        yield stopped
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


def _span_of(tracer: Tracer | None) -> BeginSpan | None:
    if tracer is None:
        return None
    from serving.gateway.spans import RequestSpan  # needs OpenTelemetry

    return partial(RequestSpan, tracer)


def _request(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """A request of the low-level server, with the limit on its body."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(
        message, payload, protocol, writer, task, loop, client_max_size=MAX_BODY_BYTES
    )


async def _cancel(task: asyncio.Task[None]) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task

"""SIGTERM: the server takes no new requests, finishes the open ones, and ends."""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Callable

from serving.engine.server.responses import App, Receive, Scope, Send, path_of, send_error
from serving.errors import InvalidEngineConfig

DEFAULT_DRAIN_S = 30.0
"""Seconds that open requests have after SIGTERM; Kubernetes kills after 30 s by default."""

_CHECK_S = 0.05

_PROBES = frozenset({"/health", "/ping"})

logger = logging.getLogger("orchestrate")


class Drain:
    """Whether the server drains, and how many requests are open.

    Args:
        limit_s: seconds that open requests have.
        stop: ends the server at once; called when the drain is over, or at a second signal.
    Raises:
        InvalidEngineConfig: the limit is negative.
    """

    def __init__(
        self, limit_s: float, stop: Callable[[], None] = lambda: signal.raise_signal(signal.SIGINT)
    ) -> None:
        if not limit_s >= 0:
            raise InvalidEngineConfig("drain_s", limit_s, "must be at least 0")
        self.num_open = 0
        self._limit_s = limit_s
        self._stop = stop
        self._task: asyncio.Task[None] | None = None

    @property
    def is_draining(self) -> bool:
        """Whether new requests are refused."""
        return self._task is not None

    def begin(self) -> None:
        """Begin to drain; a second call stops the server. Call it in the server's event loop."""
        if self._task is not None:
            self._stop()
            return
        logger.warning("draining: %d requests are open; again stops at once", self.num_open)
        self._task = asyncio.create_task(self._run(), name="drain")

    async def _run(self) -> None:
        try:
            async with asyncio.timeout(self._limit_s):
                while self.num_open:  # noqa: ASYNC110 (one line for each request is enough)
                    await asyncio.sleep(_CHECK_S)
        except TimeoutError:
            logger.error("%d requests are still open after the drain", self.num_open)
        self._stop()


class DrainMiddleware:
    """Counts open requests; answers 503 to new ones and to probes while the server drains.

    It counts POST requests and websockets, which make the model work. vLLM creates it, so it takes
    the drain from the arguments in the state of vLLM's application.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request or websocket."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        drain: Drain = scope["app"].state.args.drain
        is_work = scope.get("method", "POST") == "POST"  # a websocket has no method
        if drain.is_draining and (is_work or path_of(scope).rstrip("/") in _PROBES):
            await _refuse(scope, receive, send)
            return
        drain.num_open += is_work
        try:
            await self._app(scope, receive, send)
        finally:
            drain.num_open -= is_work


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.close", "code": 1012})  # the service restarts
        return
    message = "the server is draining: it ends after its open requests; ask another one"
    headers = [(b"retry-after", b"1")]
    await send_error(send, 503, message, kind="draining", param=None, headers=headers)

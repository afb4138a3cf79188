"""Forwards requests: the replicas that may answer are asked in turn, each at most once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import aiohttp
from aiohttp import web

from serving.engine.server.responses import TAGGED_PATHS
from serving.gateway.attempt import Attempt, Failed, Upstream, error_response
from serving.gateway.body import Body, parse_body
from serving.gateway.error_answers import NO_REPLICA_STATUS, unknown_model
from serving.gateway.fleet_state import Choice, Fleet, Nobody
from serving.gateway.http_parts import socket_with_probes
from serving.gateway.metrics import GatewayMetrics
from serving.gateway.replica_state import ReplicaState
from serving.gateway.turns import Turn, first_turn

if TYPE_CHECKING:
    from serving.gateway.spans import RequestSpan

CONNECT_S = 1.0
"""Limit on connecting: as long as a silent replica is trusted."""

KEPT_S = 4.0
"""How long an idle connection is kept: less than the 5 s after which a server closes it."""

BODY_S = 60.0
"""Limit on the arrival of a request's body, as that of `orchestrate serve`."""

_NOT_ADDED = ("Accept", "Accept-Encoding", "Content-Type", "User-Agent")


BeginSpan = Callable[[Mapping[str, str], str], "RequestSpan"]
"""Begins the span of a request, from its headers and path."""


class Forwarder:
    """Forwards requests to the replicas of a fleet.

    Args:
        now_s: the monotonic clock of the replicas' states.
        begin_span: None: no spans are made.
    Attributes:
        num_open: number of requests that are not answered completely.
    """

    def __init__(
        self,
        fleet: Fleet,
        metrics: GatewayMetrics,
        now_s: Callable[[], float],
        begin_span: BeginSpan | None = None,
    ) -> None:
        self.num_open = 0
        self._begin_span = begin_span
        self._fleet = fleet
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=0, keepalive_timeout=KEPT_S, socket_factory=socket_with_probes
            ),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=_NOT_ADDED,
        )
        self._upstream = Upstream(session, fleet.estimates, metrics, now_s)

    def cut_off(self) -> None:
        """End all requests: streams with an error event."""
        self._upstream.stop()

    async def close(self) -> None:
        """Close the connections to the replicas."""
        await self._upstream.session.close()

    async def forward(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer a request by the first of the chosen replicas that does."""
        self.num_open += 1
        begin = self._begin_span
        span = None if begin is None else begin(request.headers, request.path)
        status = None
        try:
            answer = await self._read_and_answer(request, span)
            status = answer.status
            return answer
        finally:
            self.num_open -= 1
            if span is not None:
                span.end(status)

    async def _read_and_answer(
        self, request: web.BaseRequest, span: RequestSpan | None
    ) -> web.StreamResponse:
        arrived_s = self._upstream.now_s()
        content = await _read(request)
        if isinstance(content, web.Response):
            return content
        body = parse_body(content, has_tags=request.path in TAGGED_PATHS)
        return await self._answer(request, body, arrived_s, span)

    async def _answer(
        self, request: web.BaseRequest, body: Body, arrived_s: float, span: RequestSpan | None
    ) -> web.StreamResponse:
        metrics = self._upstream.metrics
        tried: list[ReplicaState] = []
        failed: Failed | None = None
        while True:
            now_s = self._upstream.now_s()
            spent_s = now_s - arrived_s
            choice = self._fleet.choose(body, spent_s=spent_s, now_s=now_s, tried=tried)
            if isinstance(choice, Nobody):
                return failed.answer if failed is not None else _nobody(choice, body.model)
            if tried:
                metrics.count_retry()
            result = await self._ask(request, body, choice, arrived_s, span)
            if not isinstance(result, Failed):
                return result
            failed = result
            tried.extend(choice.replicas)

    async def _ask(
        self,
        request: web.BaseRequest,
        body: Body,
        choice: Choice,
        arrived_s: float,
        span: RequestSpan | None,
    ) -> web.StreamResponse | Failed:
        replica: Turn = choice.replicas[0]
        if len(choice.replicas) > 1:
            replica = await first_turn(self._upstream, request, body, choice, arrived_s)
        if not isinstance(replica, ReplicaState):
            return replica
        attempt_span = None if span is None else span.attempt(replica.url)
        attempt = Attempt(self._upstream, request, body, choice, replica, arrived_s, attempt_span)
        return await attempt.run()


def _nobody(reason: Nobody, model: str) -> web.Response:
    if reason is Nobody.UNKNOWN_MODEL:
        return web.Response(status=404, body=unknown_model(model), content_type="application/json")
    message = f"no replica can be asked: {reason.value}"
    return error_response(NO_REPLICA_STATUS, message, kind="no_replica")


async def _read(request: web.BaseRequest) -> bytes | web.Response:
    """The body of a request, or why it is refused."""
    if request.headers.get("Expect", "").lower() == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0
    try:
        async with asyncio.timeout(BODY_S):
            return await request.read()
    except TimeoutError:
        message = f"the body did not arrive within {BODY_S:.0f} s"
        response = error_response(408, message, kind="request_timeout")
        response.force_close()
        return response
    except web.HTTPRequestEntityTooLarge as error:
        response = error_response(413, error.text or "the body is too large", kind="too_large")
        response.force_close()
        return response

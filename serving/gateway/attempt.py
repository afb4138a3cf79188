"""One attempt to have a request answered by one replica.

Nothing is sent to the client before the first byte of an answer, so until then another replica can
be asked. After it a stream ends with an error event, and another answer breaks off.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import aiohttp
from aiohttp import web
from yarl import URL

from serving.gateway.body import Body
from serving.gateway.error_answers import FAILED_STATUS, error_body, error_event
from serving.gateway.events import WholeEvents
from serving.gateway.fleet_state import Choice
from serving.gateway.http_parts import payload, request_headers, response_headers
from serving.gateway.metrics import GatewayMetrics
from serving.gateway.polling import CLIENT_ERRORS
from serving.gateway.promises import demoted
from serving.gateway.replica_state import ReplicaState
from serving.gateway.retries import Outcome, is_failure, may_retry, outcome_of_status
from serving.gateway.token_estimates import USAGE_BYTES, TokenEstimates, usage_at_end
from serving.slo import remaining

if TYPE_CHECKING:
    from serving.gateway.spans import AttemptSpan

MAX_KEPT_ERROR_BYTES = 64 << 10
"""What is kept of the answer of a replica that cannot serve, while others are asked."""


class Upstream:
    """What all attempts share.

    Args:
        now_s: the monotonic clock of the replicas' states.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        estimates: TokenEstimates,
        metrics: GatewayMetrics,
        now_s: Callable[[], float],
    ) -> None:
        self.session = session
        self.estimates = estimates
        self.metrics = metrics
        self.now_s = now_s
        self._limits: set[asyncio.Timeout] = set()
        self._is_stopped = False

    @asynccontextmanager
    async def until_stopped(self) -> AsyncIterator[None]:
        """Raises CutOff within once `stop` is called."""
        limit = asyncio.timeout(0.0 if self._is_stopped else None)
        self._limits.add(limit)
        try:
            async with limit:
                yield
        except TimeoutError as error:
            raise CutOff("the gateway is stopping") from error
        finally:
            self._limits.discard(limit)

    async def post(
        self,
        replica: ReplicaState,
        request: web.BaseRequest,
        content: bytes,
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> aiohttp.ClientResponse:
        """Send a request to a replica; returns when the answer's headers have arrived.

        Args:
            headers: beside the client's own.
        Raises:
            CutOff: no connection, or it broke.
        """
        sent = request_headers(request.headers, content)
        sent.update(headers)
        try:
            return await self.session.post(
                URL(replica.url + request.raw_path, encoded=True),
                data=payload(content),
                headers=sent,
                allow_redirects=False,
            )
        except CLIENT_ERRORS as error:
            raise _cut_off(error) from error

    def stop(self) -> None:
        """Cut off all attempts, also those that begin later."""
        self._is_stopped = True
        for limit in self._limits:
            limit.reschedule(0.0)


class Failed(NamedTuple):
    """Another replica may be asked; without one the client gets this answer."""

    answer: web.Response


class CutOff(Exception):
    """The connection to the replica broke."""


class Attempt:
    """Sends a request to a replica, and passes the answer on.

    Args:
        request: as the client sent it.
        arrived_s: when its headers had arrived.
        span: that of this attempt, which ends with it.
    """

    def __init__(
        self,
        upstream: Upstream,
        request: web.BaseRequest,
        body: Body,
        choice: Choice,
        replica: ReplicaState,
        arrived_s: float,
        span: AttemptSpan | None = None,
    ) -> None:
        self._replica = replica
        self._span = span
        self._upstream = upstream
        self._request = request
        self._body = body
        self._choice = choice
        self._arrived_s = arrived_s
        self._outcome = Outcome.DISCONNECTED  # if this is cancelled: the client has gone

    async def run(self) -> web.StreamResponse | Failed:
        """The answer, which the client has; or that it has nothing."""
        replica, metrics = self._replica, self._upstream.metrics
        number = replica.sent(self._choice.request, self._upstream.now_s())
        try:
            return await self._ask()
        except CutOff as error:
            self._outcome = Outcome.UNREACHABLE
            return unreachable(replica, error)
        finally:
            replica.ended(number)
            metrics.count_attempt(replica.url, self._outcome)
            if self._span is not None:
                self._span.end(self._outcome.value, failed=is_failure(self._outcome))

    async def _ask(self) -> web.StreamResponse | Failed:
        async with self._upstream.until_stopped():
            answer = await self._send()
        try:
            async with self._upstream.until_stopped():
                first = await next_part(answer)
            self._outcome = outcome_of_status(answer.status)
            if may_retry(self._outcome):
                return Failed(await kept(answer, first))
            self._outcome = Outcome.DISCONNECTED
            return await self._pass_on(answer, first)
        finally:
            answer.close()  # a complete answer has given its connection back

    async def _send(self) -> aiohttp.ClientResponse:
        spent_s = self._upstream.now_s() - self._arrived_s
        self._upstream.metrics.count_seconds(spent_s)
        content = self._content(spent_s)
        headers: Mapping[str, str] = {}
        if self._span is not None:
            self._span.sent(spent_s)
            headers = self._span.headers
        return await self._upstream.post(self._replica, self._request, content, headers)

    def _content(self, spent_s: float) -> bytes:
        tags, slo = self._body.tags, self._body.slo
        if not tags:
            return self._body.content
        if self._choice.is_demoted:
            tags = demoted(tags, slo)
        return self._body.with_tags(remaining(tags, slo, spent_s=spent_s))

    async def _pass_on(self, answer: aiohttp.ClientResponse, first: bytes) -> web.StreamResponse:
        if answer.status < 300:
            self._replica.prefixes.add(self._choice.blocks)
        response = web.StreamResponse(
            status=answer.status, reason=answer.reason, headers=response_headers(answer.headers)
        )
        events = WholeEvents() if answer.content_type == "text/event-stream" else None
        await response.prepare(self._request)
        try:
            async with self._upstream.until_stopped():
                await self._relay(answer, first, response, events)
        except CutOff as error:
            self._outcome = Outcome.CUT_OFF
            self._replica.failed(str(error))
            await self._end_early(response, events, str(error))
            return response
        await response.write_eof()
        self._outcome = Outcome.ANSWERED
        return response

    async def _relay(
        self,
        answer: aiohttp.ClientResponse,
        part: bytes,
        response: web.StreamResponse,
        events: WholeEvents | None,
    ) -> None:
        tail = b""
        while part:
            tail = (tail + part)[-USAGE_BYTES:]
            passed = part if events is None else events.feed(part)
            if passed:
                await response.write(passed)
            part = await next_part(answer)
        if events is not None and (rest := events.rest()):
            await response.write(rest)
        usage = usage_at_end(tail)
        if usage is not None:
            characters = self._body.prompt_characters
            self._upstream.estimates.learn(self._body.model, characters=characters, usage=usage)

    async def _end_early(
        self, response: web.StreamResponse, events: WholeEvents | None, reason: str
    ) -> None:
        """End an answer whose replica failed, so that the client notices."""
        if events is None:
            if self._request.transport is not None:
                self._request.transport.abort()
            return
        message = f"the replica failed within the answer: {reason}"
        event = error_event(self._request.path, message, num_events=events.num_events)
        await response.write(event)
        await response.write_eof()


def error_response(
    status: int, message: str, *, kind: str, param: str | None = None
) -> web.Response:
    """An error of the gateway itself."""
    body = error_body(status, message, kind=kind, param=param)
    return web.Response(status=status, body=body, content_type="application/json")


def unreachable(replica: ReplicaState, error: CutOff) -> Failed:
    """Note that a replica did not answer."""
    replica.failed(str(error))
    message = f"the replica did not answer: {error}"
    return Failed(error_response(FAILED_STATUS, message, kind="replica_failed"))


async def next_part(answer: aiohttp.ClientResponse) -> bytes:
    """The next bytes of an answer; b"" at its end."""
    try:
        return await answer.content.readany()
    except CLIENT_ERRORS as error:
        raise _cut_off(error) from error


async def kept(answer: aiohttp.ClientResponse, first: bytes) -> web.Response:
    """The answer of a replica that cannot serve, to be passed on if no other one can."""
    content = first
    while len(content) < MAX_KEPT_ERROR_BYTES and (part := await next_part(answer)):
        content += part
    headers = response_headers(answer.headers)
    headers.popall("Content-Length", None)
    return web.Response(
        status=answer.status,
        reason=answer.reason,
        headers=headers,
        body=content[:MAX_KEPT_ERROR_BYTES],
    )


def _cut_off(error: BaseException) -> CutOff:
    return CutOff(str(error) or type(error).__name__)

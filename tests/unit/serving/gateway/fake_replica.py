"""A replica without a model: it answers, streams, refuses, stalls and dies as a test wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import web
from opentelemetry.trace import Tracer

from serving.gateway.gateway import Gateway, GatewaySettings, gateway_router
from tests.unit.serving.gateway.gateway_examples import MODEL, report_json

TOKENS = 5


class FakeReplica:
    """An OpenAI-compatible server.

    Attributes:
        asked: headers and body of each request, in the order of arrival.
        status: of all answers; 200 for streams and texts.
        report: what it reports; None: it has no snapshot.
        gate: a stream pauses after its first token, and another answer before it begins, until
            this is set.
        turn: a dummy waits until this is set.
        num_open: requests that it is answering.
    """

    def __init__(self, **report: Any) -> None:
        self.asked: list[tuple[dict[str, str], dict[str, Any]]] = []
        self.status = 200
        self.report: dict[str, Any] | None = report_json(**report)
        self.gate = asyncio.Event()
        self.gate.set()
        self.turn = asyncio.Event()
        self.num_open = 0
        self.paths: list[str] = []
        self.key = ""
        self.url = ""
        self._runner: web.ServerRunner | None = None
        self._transports: set[asyncio.Transport] = set()

    async def start(self, port: int = 0) -> None:
        server = web.Server(
            self._handle, request_factory=_request, handler_cancellation=True, access_log=None
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", port)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def die(self) -> None:
        """End as a killed process does: nothing listens, and all connections break."""
        assert self._runner is not None
        for site in list(self._runner.sites):
            await site.stop()
        for transport in list(self._transports):
            transport.abort()
        await self._runner.cleanup()
        self._runner = None

    async def close(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert isinstance(request.transport, asyncio.Transport)
        self._transports.add(request.transport)
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=401)
        if request.path == "/orchestrate/snapshot":
            return (
                web.Response(status=404) if self.report is None else web.json_response(self.report)
            )
        if request.path == "/v1/models":
            return web.json_response({"data": [{"id": MODEL}]})
        self.num_open += 1
        try:
            return await self._answer(request)
        finally:
            self.num_open -= 1

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        content = await request.read()
        body = json.loads(content) if content.startswith(b"{") else {"content": content}
        self.asked.append((dict(request.headers), body))
        self.paths.append(request.raw_path)
        if self.status != 200:
            return web.json_response({"error": {"code": self.status}}, status=self.status)
        if (body.get("vllm_xargs") or {}).get("slo_dummy"):
            await self.turn.wait()
            return web.json_response({}, status=202)
        if not body.get("stream"):
            await self.gate.wait()
            usage = {"prompt_tokens": 100, "completion_tokens": TOKENS}
            return web.json_response({"url": self.url, "usage": usage})
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for number in range(TOKENS):
            await response.write(f"data: {number}\n\n".encode())
            await self.gate.wait()
        await response.write(b"data: [DONE]\n\n")
        return response


def _request(*arguments: Any) -> web.BaseRequest:
    return web.BaseRequest(*arguments, asyncio.get_running_loop(), client_max_size=1 << 30)


@asynccontextmanager
async def replicas(count: int, **report: Any) -> AsyncIterator[list[FakeReplica]]:
    started = [FakeReplica(**report) for _ in range(count)]
    for each in started:
        await each.start()
    try:
        yield started
    finally:
        for each in started:
            each.gate.set()
            await each.close()


@asynccontextmanager
async def gateway_to(
    urls: Sequence[str], tracer: Tracer | None = None, **settings: Any
) -> AsyncIterator[tuple[Gateway, aiohttp.ClientSession]]:
    """A running gateway to these replicas, and a client whose requests go there."""
    settings.setdefault("router", gateway_router("power_of_k", {"k": 0}))
    gateway = Gateway(GatewaySettings(urls, port=0, **settings), tracer)
    port = await gateway.start()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as client:
        try:
            yield gateway, client
        finally:
            await gateway.stop()

"""The drain of a server, as an ASGI server calls its middleware."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace

import pytest

from serving.engine.server.draining import Drain, DrainMiddleware
from serving.engine.server.responses import Message, Receive, Scope, Send
from serving.errors import InvalidEngineConfig

WAIT_S = 5.0


class Server:
    """A drain, and an application whose answers wait until they may end."""

    def __init__(self, limit_s: float = WAIT_S) -> None:
        self.stopped = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.num_stops = 0
        self.drain = Drain(limit_s, self._stop)
        arguments = SimpleNamespace(drain=self.drain)
        self._app = SimpleNamespace(state=SimpleNamespace(args=arguments))
        self._middleware = DrainMiddleware(self._answer)

    def _stop(self) -> None:
        self.num_stops += 1
        self.stopped.set()

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["method"] == "POST":
            await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def ask(self, method: str = "POST", path: str = "/v1/completions") -> list[Message]:
        """The messages of an answer."""
        messages: list[Message] = []

        async def receive() -> Message:
            return {"type": "http.request"}

        async def send(message: Message) -> None:
            messages.append(message)

        scope = {"type": "http", "method": method, "path": path, "app": self._app, "headers": []}
        await self._middleware(scope, receive, send)
        return messages

    async def open_request(self) -> asyncio.Task[list[Message]]:
        task = asyncio.create_task(self.ask())
        await asyncio.sleep(0)
        assert self.drain.num_open == 1
        return task


async def test_a_drain_finishes_open_requests_and_refuses_new_ones() -> None:
    server = Server()
    open_request = await server.open_request()
    server.drain.begin()
    start, body = await server.ask()
    assert (start["status"], (b"retry-after", b"1") in start["headers"]) == (503, True)
    assert json.loads(body["body"])["error"]["type"] == "draining"
    assert (await server.ask("GET", "/health"))[0]["status"] == 503
    assert (await server.ask("GET", "/orchestrate/snapshot"))[0]["status"] == 200
    assert not server.stopped.is_set()
    server.may_answer.set()
    assert (await open_request)[0]["status"] == 200
    await asyncio.wait_for(server.stopped.wait(), WAIT_S)


async def test_without_open_requests_a_drain_ends_at_once() -> None:
    server = Server(limit_s=1e6)
    await server.ask("GET", "/v1/models")
    server.drain.begin()
    await asyncio.wait_for(server.stopped.wait(), WAIT_S)


async def test_a_drain_ends_after_its_limit() -> None:
    server = Server(limit_s=0.05)
    open_request = await server.open_request()
    server.drain.begin()
    await asyncio.wait_for(server.stopped.wait(), WAIT_S)
    assert not open_request.done()
    server.may_answer.set()
    await open_request


async def test_a_second_signal_stops_at_once() -> None:
    server = Server()
    open_request = await server.open_request()
    server.drain.begin()
    assert server.num_stops == 0
    server.drain.begin()
    assert server.num_stops == 1
    server.may_answer.set()
    await open_request


async def test_a_client_that_leaves_is_not_waited_for() -> None:
    server = Server()
    open_request = await server.open_request()
    open_request.cancel()
    with pytest.raises(asyncio.CancelledError):
        await open_request
    assert server.drain.num_open == 0


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(InvalidEngineConfig, match="drain_s"):
        Drain(-1.0)

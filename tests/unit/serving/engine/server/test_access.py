"""Who may use which path: keys, users, limits and closed paths, as an ASGI server calls it."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from serving.engine.server.access import (
    CLOSED_PATHS,
    AccessMiddleware,
    ApiAccess,
    key_of_request,
)
from serving.engine.server.api_keys import ApiKey, digest_of
from serving.engine.server.responses import Message, Receive, Scope, Send

ALICE = ApiKey(digest_of(b"alice's"), "alice", requests_per_minute=3, concurrency=1)
NOBODY = ApiKey(digest_of(b"plain"))


class Application:
    """Stands for vLLM: answers 200 once it may, and notes the user of the request's key."""

    def __init__(self) -> None:
        self.user: str | None = None
        self.entered = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        key = key_of_request()
        self.user = None if key is None else key.user
        self.entered.set()
        await self.may_answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})


class Client:
    """Calls the middleware, and keeps what it answers."""

    def __init__(self, *keys: ApiKey) -> None:
        self.application = Application()
        self.messages: list[Message] = []
        arguments = SimpleNamespace(api_access=ApiAccess(keys))
        self._app = SimpleNamespace(state=SimpleNamespace(args=arguments))
        self._middleware = AccessMiddleware(self.application)

    async def send(self, authorization: bytes = b"", path: str = "/v1/x", **more: Any) -> int:
        """The status of the answer."""
        self.messages = []
        headers = [(b"authorization", authorization)] if authorization else []
        scope = {"type": "http", "method": "POST", "path": path, "headers": headers}

        async def receive() -> Message:
            return {"type": "websocket.connect"}

        async def take(message: Message) -> None:
            self.messages.append(message)

        await self._middleware(scope | {"app": self._app} | more, receive, take)
        return int(self.messages[0].get("status", 0))


@pytest.mark.parametrize(
    ("path", "method", "authorization", "status"),
    [
        ("/v1/completions", "POST", "Bearer plain", 200),
        ("/v1/completions", "POST", "bearer alice's", 200),
        ("/v1/completions", "POST", "Bearer wrong", 401),
        ("/v1/completions", "POST", "Bearer ", 401),
        ("/v1/completions", "POST", "plain", 401),
        ("/v1/completions", "POST", "", 401),
        ("/invocations", "POST", "", 401),
        ("/docs", "GET", "", 401),
        ("/openapi.json", "GET", "", 401),
        ("/metrics", "GET", "", 401),
        ("/metrics/", "GET", "", 401),
        ("/version", "GET", "", 401),
        ("/health", "GET", "", 200),
        ("/ping", "GET", "", 200),
        ("/ping", "POST", "", 401),  # its body would be read
        ("/invocations", "OPTIONS", "", 200),
    ],
)
async def test_a_key_is_required_except_for_probes_and_preflights(
    path: str, method: str, authorization: str, status: int
) -> None:
    client = Client(ALICE, NOBODY)
    assert await client.send(authorization.encode(), path, method=method) == status


@pytest.mark.parametrize("key", [b"\xff", b"\xed\xa0\x80", "schlüssel".encode("latin-1")])
async def test_a_foreign_key_of_any_bytes_is_answered_401(key: bytes) -> None:
    assert await Client(ALICE).send(b"Bearer " + key) == 401


async def test_without_keys_every_path_but_the_closed_ones_is_open() -> None:
    assert await Client().send() == 200


@pytest.mark.parametrize("path", sorted(CLOSED_PATHS))
@pytest.mark.parametrize("keys", [(), (NOBODY,)])
async def test_a_closed_path_is_answered_404_also_with_a_key(
    path: str, keys: tuple[ApiKey, ...]
) -> None:
    client = Client(*keys)
    for spelling in (path, f"{path}/", f"/root{path}"):
        root = "/root" if spelling.startswith("/root") else ""
        assert await client.send(b"Bearer plain", spelling, root_path=root) == 404


async def test_a_websocket_without_a_key_is_closed() -> None:
    client = Client(NOBODY)
    await client.send(type="websocket", path="/v1/realtime")
    assert client.messages == [{"type": "websocket.close", "code": 1008}]


async def test_messages_other_than_requests_are_passed_on() -> None:
    client = Client(NOBODY)
    assert await client.send(type="lifespan") == 200


@pytest.mark.parametrize(("key", "user"), [(b"alice's", "alice"), (b"plain", None)])
async def test_the_application_sees_the_user_of_the_key(key: bytes, user: str | None) -> None:
    client = Client(ALICE, NOBODY)
    await client.send(b"Bearer " + key)
    assert client.application.user == user
    assert key_of_request() is None


async def test_requests_beyond_the_rate_of_a_key_are_answered_429() -> None:
    client = Client(ALICE, NOBODY)
    assert [await client.send(b"Bearer alice's") for _ in range(4)] == [200, 200, 200, 429]
    headers = dict(client.messages[0]["headers"])
    assert 0 < int(headers[b"retry-after"]) <= 60
    error = json.loads(client.messages[1]["body"])["error"]
    assert error["type"] == "rate_limit_exceeded"
    assert await client.send(b"Bearer alice's", "/v1/models", method="GET") == 200
    assert await client.send(b"Bearer plain") == 200


async def test_a_second_request_at_once_is_answered_429_until_the_first_has_ended() -> None:
    client = Client(ALICE)
    application = client.application
    application.may_answer.clear()
    first = asyncio.create_task(client.send(b"Bearer alice's"))
    async with asyncio.timeout(20):
        await application.entered.wait()
        assert await client.send(b"Bearer alice's") == 429
    first.cancel()  # as the server does when its client disconnects
    await asyncio.gather(first, return_exceptions=True)
    application.may_answer.set()
    assert await client.send(b"Bearer alice's") == 200

"""A server without a key refuses requests that name another host than this machine."""

from __future__ import annotations

from typing import Any

import pytest

from serving.engine.server.local_host import LocalHostMiddleware, is_loopback


async def answered(scope_type: str, *hosts: str) -> list[dict[str, Any]]:
    """What the middleware sends; the application behind it sends "passed"."""
    sent: list[dict[str, Any]] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "passed"})

    async def receive() -> dict[str, Any]:
        return {"type": "websocket.connect"}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"host", host.encode("latin-1")) for host in hosts]
    await LocalHostMiddleware(app)({"type": scope_type, "headers": headers}, receive, send)
    return sent


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.8.8.8", "[::1]:8000", "[::1]"]
)
@pytest.mark.parametrize("scope_type", ["http", "websocket"])
async def test_requests_to_this_machine_pass(scope_type: str, host: str) -> None:
    assert is_loopback("localhost")
    assert await answered(scope_type, host) == [{"type": "passed"}]


@pytest.mark.parametrize(
    "host", ["evil.example:8000", "localhost.evil.example", "", "[::1", "127.0.0.1@evil", "\xff"]
)
async def test_requests_to_other_names_are_refused(host: str) -> None:
    start, body = await answered("http", host)
    assert (start["status"], b"localhost only" in body["body"]) == (403, True)
    assert await answered("websocket", host) == [{"type": "websocket.close", "code": 1008}]


async def test_one_of_several_hosts_is_not_enough_and_other_events_pass() -> None:
    assert (await answered("http", "localhost", "evil.example"))[0]["status"] == 403
    assert await answered("lifespan") == [{"type": "passed"}]

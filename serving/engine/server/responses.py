"""What the server's parts share: types, a request's path and body, errors, responses in JSON."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from http import HTTPStatus
from typing import Any

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

TAGGED_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
"""Paths of requests that may carry SLO tags."""


def path_of(scope: Scope) -> str:
    """The path of a request below the application's root."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def failure(status: int, message: str) -> Exception:
    """The only error that vLLM's handlers put into a response without logging a traceback."""
    from vllm.exceptions import GenerationError

    error: Exception = GenerationError(message)
    error.status_code = HTTPStatus(status)  # type: ignore[attr-defined]
    return error


async def send_error(
    send: Send,
    status: int,
    message: str,
    *,
    kind: str,
    param: str | None,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """Send an error response in the format of OpenAI's API."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    await send_json(send, status, {"error": error}, headers=headers)


async def send_json(
    send: Send,
    status: int,
    document: Mapping[str, Any],
    *,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> None:
    """Send a response with a JSON body."""
    body = json.dumps(document).encode()
    content = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    start = {"type": "http.response.start", "status": status, "headers": [*content, *headers]}
    await send(start)
    await send({"type": "http.response.body", "body": body})


async def read_body(receive: Receive) -> bytes | None:
    """The whole body of a request; None if its client disconnected."""
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def received_again(body: bytes, receive: Receive) -> Receive:
    """Receives the body again, then what follows it: vLLM waits there for a disconnect."""
    replayed = False

    async def receive_again() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again

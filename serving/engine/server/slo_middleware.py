"""What our server adds in front of vLLM's HTTP application: pure ASGI, and it buffers no response.

SloMiddleware refuses malformed SLO tags before they are admitted, and says on every response that
tags are honoured here. KeyGuard asks for the API key where vLLM itself does not.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextvars import ContextVar
from typing import Any

from serving.errors import InvalidSlo
from serving.slo import TAG_PREFIX, from_tags

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SCHEDULER_HEADER = "x-orchestrate-scheduler"
POLICY_HEADER = "x-orchestrate-policy"

TAGGED_PATHS = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/responses"})
OPEN_PATHS = frozenset({"/health", "/ping", "/metrics", "/version"})

DROPPED_STATUS = 504
"""The status of a dropped request; no other answer of vLLM's server has it."""

_dropped: ContextVar[list[str]] = ContextVar("dropped")


def note_drop(stop_reason: str) -> None:
    """Tell the middleware, from inside vLLM's application, that this request was dropped."""
    noted = _dropped.get(None)
    if noted is not None:
        noted.append(stop_reason)


class SloMiddleware:
    """Answers 400 to malformed tags on TAGGED_PATHS; names scheduler and policy in two headers.

    It reads both from the arguments that vLLM keeps in the application's state, so that
    ``--middleware serving.engine.server.slo_middleware.SloMiddleware`` is all that it needs.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request; its body is read, checked and replayed, its response passes through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        response = _Response(_announcement(scope), send)
        if scope["method"] != "POST" or _path(scope) not in TAGGED_PATHS:
            await self.app(scope, receive, response.send)
            return
        body = await _read(receive)
        if body is None:  # the client left
            return
        error = tags_error(body)
        if error is not None:
            key = str(error.args[0])
            await _answer(response.send, 400, str(error), kind="invalid_slo", param=key)
            return
        dropped: list[str] = []
        token = _dropped.set(dropped)
        try:
            await self.app(scope, _replaying(body, receive), response.send)
        except Exception:
            # vLLM 0.32 fails to put an error into a stream of /v1/responses, and breaks it off.
            if not (dropped and response.is_open):
                raise
            await response.end_with_error(dropped[0])
        finally:
            _dropped.reset(token)


class KeyGuard:
    """Asks for the API key on every path but OPEN_PATHS; vLLM guards only some prefixes."""

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request or websocket; browsers' preflights carry no key and pass."""
        open_to_all = (
            scope["type"] not in ("http", "websocket")
            or scope.get("method") == "OPTIONS"
            or _path(scope) in OPEN_PATHS
        )
        if open_to_all or _has_key(scope):
            await self.app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await _answer(send, 401, "a valid API key is needed", kind="unauthorized", param=None)


def tags_error(body: bytes) -> InvalidSlo | None:
    """What is wrong with the SLO tags in a request's JSON body; None: nothing, or no tags.

    Beam search is refused with tags: vLLM makes requests of its own for the beams, without them.
    A body that is no JSON object, or nested too deeply, is left for vLLM to refuse.
    """
    if TAG_PREFIX.encode() not in body and b"\\" not in body:  # which could spell it otherwise
        return None
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        return None
    tags = document.get("vllm_xargs") if isinstance(document, dict) else None
    if not isinstance(tags, dict):
        return None
    try:
        from_tags(tags)
    except InvalidSlo as error:
        return error
    if document.get("use_beam_search") and any(key.startswith(TAG_PREFIX) for key in tags):
        reason = "beam search keeps no promise; leave it out, or the tags"
        return InvalidSlo("use_beam_search", document["use_beam_search"], reason)
    return None


def _path(scope: Scope) -> str:
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def _announcement(scope: Scope) -> list[tuple[bytes, bytes]]:
    arguments = scope["app"].state.args
    settings: Mapping[str, Any] = (arguments.additional_config or {}).get("orchestrate", {})
    scheduler = str(arguments.scheduler_cls or "").rpartition(".")[2]
    policy = str(settings.get("policy", {}).get("name", ""))
    return [
        (SCHEDULER_HEADER.encode(), scheduler.encode()),
        (POLICY_HEADER.encode(), policy.encode()),
    ]


class _Response:
    """Passes a response on as it comes: adds headers, and can end a stream that broke off."""

    def __init__(self, headers: list[tuple[bytes, bytes]], send: Send) -> None:
        self.is_open = False
        self._headers = headers
        self._send = send
        self._parts = 0

    async def send(self, message: Message) -> None:
        """What the application sends, in its place."""
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), *self._headers]
            if message["status"] == DROPPED_STATUS:
                headers.append((b"x-should-retry", b"false"))  # OpenAI's clients repeat 5xx else
            message = {**message, "headers": headers}
            self.is_open = True
        elif message["type"] == "http.response.body":
            self.is_open = message.get("more_body", False)
            self._parts += 1
        await self._send(message)

    async def end_with_error(self, reason: str) -> None:
        """End an event stream with the error event of OpenAI's Responses API."""
        event = {
            "type": "error",
            "code": str(DROPPED_STATUS),
            "message": reason,
            "param": None,
            "sequence_number": self._parts,
        }
        body = f"event: error\ndata: {json.dumps(event)}\n\n".encode()
        await self.send({"type": "http.response.body", "body": body})


async def _read(receive: Receive) -> bytes | None:
    parts: list[bytes] = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body", False):
            return b"".join(parts)


def _replaying(body: bytes, receive: Receive) -> Receive:
    """The body again, and then whatever comes: vLLM waits there for the client to leave."""
    replayed = False

    async def receiving() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving


def _has_key(scope: Scope) -> bool:
    sent = dict(scope["headers"]).get(b"authorization", b"")
    scheme, _, key = sent.partition(b" ")
    digest = hashlib.sha256(key).digest()
    known = [hashlib.sha256(key.encode()).digest() for key in scope["app"].state.args.api_key or ()]
    matches = [secrets.compare_digest(digest, other) for other in known]
    return scheme.lower() == b"bearer" and any(matches)


async def _answer(send: Send, status: int, message: str, *, kind: str, param: str | None) -> None:
    """An error as OpenAI's API words it."""
    error = {"message": message, "type": kind, "param": param, "code": status}
    body = json.dumps({"error": error}).encode()
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})

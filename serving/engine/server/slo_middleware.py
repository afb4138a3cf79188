"""ASGI middleware in front of vLLM's HTTP application; it does not buffer responses.

It rejects malformed SLO tags and text before admission, and names the scheduler in responses.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any, NamedTuple

from serving.engine.server.responses import (
    TAGGED_PATHS,
    App,
    Message,
    Receive,
    Scope,
    Send,
    path_of,
    read_body,
    received_again,
    send_error,
)
from serving.errors import InvalidSlo
from serving.request_fields import with_tags
from serving.slo import TAG_PREFIX, from_tags

SCHEDULER_HEADER = "x-orchestrate-scheduler"
POLICY_HEADER = "x-orchestrate-policy"

DROPPED_STATUS = 504
"""HTTP status of a dropped request; vLLM's server uses it for nothing else."""

BEGUN_STATUS = 202
"""HTTP status of a dummy when its turn has come; nothing else of these paths is accepted so."""

_MAY_HAVE_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]|\xed[\xa0-\xbf]|\x00")
"""JSON with a lone surrogate as an escape, as bytes, or in UTF-16 or UTF-32 (they contain NULs)."""

_KINDS = {400: "BadRequestError", BEGUN_STATUS: "begun"}
"""The type of the answer to a request that is refused inside vLLM."""

_fate: ContextVar[_Fate] = ContextVar("fate")


class Refusal(NamedTuple):
    """Why a request is refused inside vLLM: the HTTP status, what to change, and which field."""

    status: int
    reason: str
    param: str


class _Fate:
    """What has become of the present request inside vLLM, which the start of a stream hides."""

    is_admitted = False
    error: tuple[int, str] | None = None
    refusal: Refusal | None = None
    has_tool_schema = False


def record_error(status: int, message: str) -> None:
    """Report to SloMiddleware, from inside vLLM, that the present request ends with an error."""
    _fate.get(_Fate()).error = (status, message)


def record_admission() -> None:
    """Report to SloMiddleware, from inside vLLM, that the engine receives the present request."""
    _fate.get(_Fate()).is_admitted = True


def record_tool_schema() -> None:
    """Report, from inside vLLM, that the schema of the present request is made of its tools."""
    _fate.get(_Fate()).has_tool_schema = True


def has_tool_schema() -> bool:
    """Whether the schema of the present request is made of its tools."""
    return _fate.get(_Fate()).has_tool_schema


def record_refusal(refusal: Refusal) -> None:
    """Report to SloMiddleware, from inside vLLM, that the present request is refused."""
    _fate.get(_Fate()).refusal = refusal


class SloMiddleware:
    """Answers 400 to malformed tags and text; adds headers with the scheduler and policy.

    Tags are checked on TAGGED_PATHS, text in every JSON body: with a lone surrogate vLLM would fail
    where it encodes the text, in an answer of status 500 or between its processes.

    It reads both from the arguments in the state of vLLM's application, so it needs no set-up but
    ``--middleware serving.engine.server.slo_middleware.SloMiddleware``.
    """

    def __init__(self, app: App) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request: check its body, pass it on, and pass the response through."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        fate = _Fate()
        response = _Response(_scheduler_headers(scope), send, fate)
        has_tags = scope["method"] == "POST" and path_of(scope) in TAGGED_PATHS
        if not has_tags and not _may_be_json(scope):
            await self.app(scope, receive, response.send)
            return
        body = await read_body(receive)
        if body is None:  # the client disconnected
            return
        field = surrogate_field(body)
        if field is not None:
            message = "the body contains text that UTF-8 cannot encode (a lone surrogate)"
            await send_error(response.send, 400, message, kind="invalid_text", param=field)
            return
        error = None
        if has_tags:
            try:
                body = with_tags(body)
            except InvalidSlo as invalid:
                error = invalid
            error = error or tags_error(body)
        if error is not None:
            key = str(error.args[0])
            await send_error(response.send, 400, str(error), kind="invalid_slo", param=key)
            return
        token = _fate.set(fate)
        try:
            await self.app(scope, received_again(body, receive), response.send)
        except Exception:
            # vLLM 0.32 cannot put an error into a stream of /v1/responses, and aborts the stream.
            if not await response.end_with_error():
                raise
        finally:
            _fate.reset(token)


def tags_error(body: bytes) -> InvalidSlo | None:
    """The error in the SLO tags of a request's JSON body; None if they are valid or missing.

    Tags together with beam search are an error: vLLM runs each beam as a request without tags.
    A body that is not a JSON object, or is nested too deeply, is left for vLLM to reject.
    """
    # JSON escapes could spell the prefix in another way.
    if TAG_PREFIX.encode() not in body and b"\\" not in body:
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
        reason = "beam search ignores SLO tags; remove it, or the tags"
        return InvalidSlo("use_beam_search", document["use_beam_search"], reason)
    return None


def surrogate_field(body: bytes) -> str | None:
    """The first field of a JSON body that contains a lone surrogate; "" if it is not an object."""
    if not _MAY_HAVE_SURROGATE.search(body):
        return None
    try:
        document = json.loads(body)
        fields = document.items() if isinstance(document, dict) else [("", document)]
        return next((name for name, value in fields if _has_surrogate([name, value])), None)
    except (ValueError, RecursionError):
        return None  # left for vLLM to reject


def _has_surrogate(value: object) -> bool:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return True
    return False


def _may_be_json(scope: Scope) -> bool:
    """Whether vLLM may read the body as JSON, which it does without a content type too."""
    content_type = dict(scope["headers"]).get(b"content-type", b"application/json").lower()
    return scope["method"] not in ("GET", "HEAD", "OPTIONS") and b"json" in content_type


def _scheduler_headers(scope: Scope) -> list[tuple[bytes, bytes]]:
    arguments = scope["app"].state.args
    settings: Mapping[str, Any] = (arguments.additional_config or {}).get("orchestrate", {})
    scheduler = str(arguments.scheduler_cls or "").rpartition(".")[2]
    policy = str(settings.get("policy", {}).get("name", ""))
    return [
        (SCHEDULER_HEADER.encode(), scheduler.encode()),
        (POLICY_HEADER.encode(), policy.encode()),
    ]


class _Response:
    """Passes a response on part by part, with added headers; can end an aborted stream.

    A stream starts only when the engine receives the request: until then it may be refused.
    """

    def __init__(self, headers: list[tuple[bytes, bytes]], send: Send, fate: _Fate) -> None:
        self._headers = headers
        self._send = send
        self._fate = fate
        self._held: list[Message] = []
        self._has_started = False
        self._is_open = False
        self._num_parts = 0

    async def send(self, message: Message) -> None:
        """Pass on a message of the application, unless the request is refused."""
        if await self._refuse():
            return
        self._held.append(message)
        if not self._is_undecided():
            while self._held:
                await self._pass_on(self._held.pop(0))

    async def end_with_error(self) -> bool:
        """End a response that the application aborts; False if its error is unknown here."""
        if await self._refuse():
            return True
        if self._fate.error is None or not self._is_open:
            return False
        status, message = self._fate.error
        event = {  # the error event of OpenAI's Responses API
            "type": "error",
            "code": str(int(status)),
            "message": message,
            "param": None,
            "sequence_number": self._num_parts,
        }
        body = f"event: error\ndata: {json.dumps(event)}\n\n".encode()
        await self._pass_on({"type": "http.response.body", "body": body})
        return True

    async def _refuse(self) -> bool:
        """Answer with an error, once, if the request is refused and its response not started."""
        refusal = self._fate.refusal
        if refusal is not None and not self._has_started:
            status, reason, param = refusal
            kind = _KINDS.get(status, "PermissionDeniedError")
            await send_error(self._pass_on, status, reason, kind=kind, param=param)
            self._held.clear()
        return refusal is not None and not self._is_open

    def _is_undecided(self) -> bool:
        first, last = self._held[0], self._held[-1]
        if self._has_started or self._fate.is_admitted:
            return False
        is_stream = (b"content-type", b"text/event-stream") in (
            (name.lower(), value.partition(b";")[0]) for name, value in first.get("headers", ())
        )
        return is_stream and (last is first or last.get("more_body", False))

    async def _pass_on(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = [*message.get("headers", ()), *self._headers]
            if message["status"] == DROPPED_STATUS:
                headers.append((b"x-should-retry", b"false"))  # else OpenAI's clients retry a 5xx
            message = {**message, "headers": headers}
            self._has_started = self._is_open = True
        elif message["type"] == "http.response.body":
            self._is_open = message.get("more_body", False)
            self._num_parts += 1
        await self._send(message)

"""ASGI middleware that tells the analyzer about each request, and gives it the request's program.

Two headers name a program and its deadline, so that a client says them once for all its calls. The
first one is another spelling of the tag `slo_program`.
"""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Any

from serving.analyzer.messages import Arrival, Ended
from serving.engine.server.access import key_of_request
from serving.engine.server.advice.client import AnalyzerClient
from serving.engine.server.advice.request_shape import arrival_of
from serving.engine.server.responses import (
    TAGGED_PATHS,
    App,
    Receive,
    Scope,
    Send,
    path_of,
    read_body,
    received_again,
    send_error,
)
from serving.errors import InvalidSlo
from serving.slo import MAX_NAME_CHARACTERS, TagValue, from_tags

PROGRAM_HEADER = "x-orchestrate-program"
DEADLINE_HEADER = "x-orchestrate-program-deadline"

MAX_BODY_BYTES = 1 << 20
"""Longer bodies are not analyzed: they hold images, and reading them would block the server."""

_PROMISES = frozenset({"slo_kind", "slo_deadline_s", "slo_final_s", "slo_ttft_s", "slo_tbt_s"})
LENGTH_TAG = "slo_length_q"

_DEADLINES = ("slo_deadline_s", "slo_final_s")

_call: ContextVar[AdvisedCall | None] = ContextVar("advised_call", default=None)


def advised_call() -> AdvisedCall | None:
    """The present request as the analyzer knows it; None if nothing is to be added to it."""
    return _call.get()


class AdvisedCall:
    """A request with tags that are to be completed.

    Args:
        client: None: there is no analyzer.
        fallback: the tags to add where the analyzer says nothing.
    """

    def __init__(
        self, call: str, client: AnalyzerClient | None, fallback: Mapping[str, TagValue]
    ) -> None:
        self._call = call
        self._client = client
        self._fallback = fallback

    async def completed(self, tags: Mapping[str, Any]) -> dict[str, Any]:
        """The request's own tags, with those that the analyzer adds."""
        advice = {} if self._client is None else await self._client.advice(self._call)
        return with_advice(tags, {**self._fallback, **advice})

    def ended(
        self,
        answer: str,
        *,
        prompt_tokens: int = 0,
        output_tokens: int = 0,
        is_complete: bool = False,
    ) -> None:
        """Tell the analyzer how it ended; only the first time counts."""
        if self._client is not None:
            self._client.ended(
                Ended(
                    call=self._call,
                    at_s=time.monotonic(),
                    answer=answer,
                    prompt_tokens=prompt_tokens,
                    output_tokens=output_tokens,
                    is_complete=is_complete,
                )
            )


def with_advice(tags: Mapping[str, Any], advice: Mapping[str, TagValue]) -> dict[str, Any]:
    """A request's own tags, which win, with the advised ones that fit to them.

    If all together contradict each other, as for a stream within a program, then with the length.
    """
    if any(tag in tags for tag in _DEADLINES):  # one of each could contradict
        advice = {tag: value for tag, value in advice.items() if tag not in _DEADLINES}
    length = {tag: value for tag, value in advice.items() if tag == LENGTH_TAG}
    for fitting in (advice, length):
        merged = dict(fitting) | dict(tags)
        try:
            from_tags(merged)
        except InvalidSlo:
            continue
        return merged
    return dict(tags)


class AdviceMiddleware:
    """Tells the analyzer about requests that may carry tags; answers 400 to malformed headers.

    It takes the analyzer from the arguments in the state of vLLM's application.
    """

    def __init__(self, app: App) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle a request."""
        is_tagged = scope["type"] == "http" and path_of(scope) in TAGGED_PATHS
        if not is_tagged or scope["method"] != "POST":
            await self._app(scope, receive, send)
            return
        try:
            program, deadline_s = _program_of(scope)
        except ValueError as error:
            name, reason = error.args
            await send_error(send, 400, f"{name}: {reason}", kind="invalid_header", param=name)
            return
        client: AnalyzerClient | None = scope["app"].state.args.analyzer
        if client is None and not program and deadline_s is None:
            await self._app(scope, receive, send)
            return
        body = await read_body(receive)
        if body is None:  # the client disconnected
            return
        call = _advised(body, client, program, deadline_s)
        token = _call.set(call)
        try:
            await self._app(scope, received_again(body, receive), send)
        finally:
            _call.reset(token)
            if call is not None:  # of a request that vLLM refused, the engine says nothing
                call.ended("")


def _program_of(scope: Scope) -> tuple[str, float | None]:
    """The program and its deadline in seconds, of the headers; ValueError(header, reason)."""
    headers = dict(scope["headers"])
    program = headers.get(PROGRAM_HEADER.encode(), b"").decode("utf-8", "replace").strip()
    if len(program) > MAX_NAME_CHARACTERS:
        raise ValueError(PROGRAM_HEADER, f"is longer than {MAX_NAME_CHARACTERS} characters")
    written = headers.get(DEADLINE_HEADER.encode())
    if written is None:
        return program, None
    try:
        deadline_s = float(written)
    except ValueError:
        deadline_s = math.nan
    if not 0 < deadline_s < math.inf:
        reason = "give the seconds from the program's first call to its end, above 0"
        raise ValueError(DEADLINE_HEADER, reason)
    return program, deadline_s


def _advised(
    body: bytes, client: AnalyzerClient | None, program: str, deadline_s: float | None
) -> AdvisedCall | None:
    """The call of a body, reported to the analyzer; None if nothing is to be added to it."""
    try:
        document = json.loads(body) if len(body) <= MAX_BODY_BYTES else None
    except (ValueError, RecursionError):  # left for vLLM to reject
        return None
    tags = document.get("vllm_xargs") or {} if isinstance(document, dict) else {}
    if not isinstance(tags, dict) or tags.get("slo_dummy") or _is_predicted(tags):
        return None
    call = uuid.uuid4().hex
    if _PROMISES & tags.keys():
        deadline_s = None
    fallback: dict[str, TagValue] = {}
    if deadline_s is not None:
        fallback = {"slo_program": program or call, "slo_deadline_s": deadline_s}
    elif program:
        fallback = {"slo_program": program}
    if client is None or not isinstance(document, dict):
        return AdvisedCall(call, None, fallback)
    arrival = _arrival(document, tags, call, program, deadline_s)
    if arrival is None:
        return AdvisedCall(call, None, fallback)
    client.arrived(arrival)
    return AdvisedCall(call, client, fallback)


def _is_predicted(tags: Mapping[str, Any]) -> bool:
    """Whether the client predicts all that the analyzer could."""
    return LENGTH_TAG in tags and ("slo_future" in tags or "slo_program" not in tags)


def _arrival(
    document: Mapping[str, Any],
    tags: Mapping[str, Any],
    call: str,
    program: str,
    deadline_s: float | None,
) -> Arrival | None:
    key = key_of_request()
    program = tags.get("slo_program") or program
    final_s = (tags.get("slo_final_s") or tags.get("slo_deadline_s")) if program else None
    try:
        return arrival_of(
            document,
            call=call,
            at_s=time.monotonic(),
            user=(key.user if key is not None else None) or tags.get("slo_user") or "",
            program=program,
            program_deadline_s=deadline_s,
            final_s=final_s,
        )
    except (TypeError, ValueError, RecursionError):  # vLLM refuses such a body
        return None

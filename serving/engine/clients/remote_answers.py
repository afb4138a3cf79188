"""Responses of an OpenAI-compatible server, converted: streamed answers and errors."""

from __future__ import annotations

import json
import re
import time
from typing import Any

from serving.engine.clients.answers import IMPOSSIBLE_LOGPROB, finish_reason
from serving.engine.clients.chat_turns import with_unique_ids
from serving.errors import (
    InvalidRequest,
    InvalidSlo,
    PromptTooLong,
    RemoteRefused,
    RemoteUnavailable,
    RequestFailed,
    ServingError,
    ToolsNotSupported,
    error_of_stop_reason,
)
from serving.generation import Completion, GenerationRequest, Token, ToolCall, Usage
from serving.slo import to_tags

MAX_TOKENS = 2**31
"""Largest token count that is accepted from a server."""

_NO_TOOLS = re.compile(
    r"tool choice requires"  # vLLM without --enable-auto-tool-choice
    r"|(?:not|n't) support (?:\w+ )?(?:tool|function)"  # Ollama and others
    r"|(?:tool|function)s?(?: \w+)? (?:is|are) not supported"
    r"|tools param requires",  # llama.cpp without --jinja
    re.IGNORECASE,
)
"""What servers say that do not take tools."""


class StreamedAnswer:
    """Collects the parts of one streamed answer to a chat or a plain prompt."""

    def __init__(self, request: GenerationRequest) -> None:
        self._request = request
        self._submitted_s = time.monotonic()
        self._first_text_s: float | None = None
        self._texts: list[str] = []
        self._usage: Any = None
        self._finish_reason: str | None = None
        self._stop_reason: object = None
        self._tokens: list[Token] = []
        self._first_token: dict[str, float] = {}  # log-probabilities of what it could be
        self._tool_calls = ToolCallDeltas()

    def add(self, part: Any) -> str:
        """Add a part; returns its text. Any field may be missing: the client checks no types."""
        self._usage = getattr(part, "usage", None) or self._usage
        added = ""
        for choice in getattr(part, "choices", None) or ():
            text = getattr(choice, "text", None)
            if not isinstance(self._request.prompt, str):
                delta = getattr(choice, "delta", None)
                text = getattr(delta, "content", None)
                self._tool_calls.add(getattr(delta, "tool_calls", None))
            added += text if isinstance(text, str) else ""
            self._add_logprobs(getattr(choice, "logprobs", None))
            self._finish_reason = getattr(choice, "finish_reason", None) or self._finish_reason
            self._stop_reason = getattr(choice, "stop_reason", None) or self._stop_reason
        if added:
            self._first_text_s = self._first_text_s or time.monotonic()
            self._texts.append(added)
        return added

    def completion(self, url: str) -> Completion:
        """The whole answer, once the stream is over.

        Token counts are the server's. If it sends none, each part counts as one output token.

        Raises:
            RemoteUnavailable: the stream broke off.
            RequestDropped, RequestFailed: the request ended without an answer, or the server sent
                no log-probabilities although the request has logprobs.
        """
        request_id = self._request.request_id
        if self._finish_reason is None:
            raise RemoteUnavailable(url, "the stream ended before the answer did")
        reason = finish_reason(self._finish_reason)
        if reason is None:
            named = error_of_stop_reason(request_id, self._stop_reason)
            raise named or RequestFailed(request_id, self._finish_reason)
        if self._request.logprobs is not None and not self._tokens:
            raise RequestFailed(request_id, "the server sent no log-probabilities")
        details = getattr(self._usage, "prompt_tokens_details", None)
        now_s = time.monotonic()
        return Completion(
            request_id=request_id,
            text="".join(self._texts),
            finish_reason=reason,
            usage=Usage(
                prompt_tokens=self._count("prompt_tokens", self._usage, 0),
                output_tokens=self._count("completion_tokens", self._usage, len(self._texts)),
                cached_tokens=self._count("cached_tokens", details, 0),
            ),
            ttft_s=(self._first_text_s or now_s) - self._submitted_s,
            e2el_s=now_s - self._submitted_s,
            choice_logprobs=self._choice_logprobs(),
            tokens=tuple(self._tokens),
            tool_calls=self._tool_calls.calls() if self._request.tools else (),
        )

    def _add_logprobs(self, logprobs: Any) -> None:
        if self._request.choices and not self._first_token:
            self._first_token = _first_token(logprobs)
        if self._request.logprobs is not None and logprobs is not None:
            try:
                self._tokens += _tokens_of(logprobs, self._request.logprobs)
            except (AttributeError, TypeError, ValueError) as error:
                reason = f"the server sent log-probabilities of an unknown form: {error}"
                raise RequestFailed(self._request.request_id, reason) from error

    def _choice_logprobs(self) -> tuple[float, ...]:
        """Of each choice; one whose token the server did not list is below all that it listed."""
        choices = self._request.choices
        if not choices or not self._first_token:
            return ()
        unlisted = min(self._first_token.values()) - 1.0
        return tuple(
            max(
                (
                    logprob
                    for token, logprob in self._first_token.items()
                    if token.strip() and choice.strip().startswith(token.strip())
                ),
                default=unlisted,
            )
            for choice in choices
        )

    def _count(self, name: str, counts: Any, default: int) -> int:
        """A token count from the server; the default if it sends none."""
        count = getattr(counts, name, None)
        if count is None:
            return default
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MAX_TOKENS:
            raise RequestFailed(self._request.request_id, f"the server sent {name}={count!r}")
        return count


class ToolCallDeltas:
    """Collects the tool calls of a streamed answer, whose arguments arrive in pieces."""

    def __init__(self) -> None:
        self._parts: dict[int, list[str]] = {}  # id, name, arguments; by place in the answer

    def add(self, deltas: Any) -> None:
        """Add the pieces of one part; a piece without a place belongs to the last call."""
        for delta in deltas if isinstance(deltas, list) else ():
            function, place = getattr(delta, "function", None), getattr(delta, "index", None)
            place = place if isinstance(place, int) else None
            call_id, name = _text(delta, "id"), _text(function, "name")
            if place is None:
                begins = bool(name) or not self._parts
                place = len(self._parts) if begins else next(reversed(self._parts))
            parts = self._parts.setdefault(place, ["", "", ""])
            parts[0] = parts[0] or call_id
            parts[1] += name
            parts[2] += _arguments_text(function)

    def calls(self) -> tuple[ToolCall, ...]:
        """The calls, each with an id of its own; arguments that were left out are an object."""
        return with_unique_ids(
            ToolCall(call_id, name, arguments or "{}")
            for call_id, name, arguments in self._parts.values()
        )


def _text(part: Any, name: str) -> str:
    value = getattr(part, name, None)
    return value if isinstance(value, str) else ""


def _arguments_text(function: Any) -> str:
    """A piece of a call's arguments; some servers send their object itself, not its text."""
    value = getattr(function, "arguments", None)
    return (
        value if isinstance(value, str) else "" if value is None else json.dumps(value, default=str)
    )


def _first_token(logprobs: Any) -> dict[str, float]:
    """The alternatives of an answer's first token, of a chat or a plain prompt; {} if unknown."""
    content = getattr(logprobs, "content", None)
    if content:
        listed = getattr(content[0], "top_logprobs", None) or ()
        return {str(each.token): float(each.logprob) for each in listed}
    top = getattr(logprobs, "top_logprobs", None)
    return {str(token): float(value) for token, value in dict(top[0]).items()} if top else {}


def _tokens_of(logprobs: Any, num_top: int) -> list[Token]:
    """The tokens of a part of an answer to a chat or a plain prompt."""
    if hasattr(logprobs, "content"):
        return [
            _token(
                each.token,
                each.logprob,
                [(top.token, top.logprob) for top in each.top_logprobs or ()],
                num_top,
            )
            for each in logprobs.content or ()
        ]
    texts, values = logprobs.tokens or (), logprobs.token_logprobs or ()
    tops = logprobs.top_logprobs or [None] * len(texts)
    return [
        _token(text, logprob, list((top or {}).items()), num_top)
        for text, logprob, top in zip(texts, values, tops, strict=True)
    ]


def _token(text: str, logprob: float, listed: list[tuple[str, float]], num_top: int) -> Token:
    best = sorted(listed, key=lambda each: -each[1])[:num_top]
    return Token(
        str(text),
        float(logprob),
        tuple((str(top), float(value)) for top, value in best if value > IMPOSSIBLE_LOGPROB),
    )


class ErrorResponse:
    """An error that the server sent, as an HTTP status or inside a stream."""

    def __init__(self, *, status: int, message: str, kind: str, param: str) -> None:
        self.status = status
        self.message = message
        self._kind = kind
        self._param = param

    def named(self, url: str, request: GenerationRequest, limit: int | None) -> ServingError:
        """The named error; `limit` is the model's context length, None if unknown."""
        request_id = request.request_id
        named = error_of_stop_reason(request_id, self.message)
        if named is not None:
            return named
        if self._kind == "invalid_slo":
            value = to_tags(request.slo).get(self._param)
            reason = self.message.removeprefix(f"{self._param}={value!r}: ")
            return InvalidSlo(self._param, value, reason)
        if request.tools and _NO_TOOLS.search(self.message):
            return ToolsNotSupported(request_id, self.message)
        if self.status not in (400, 422):
            return RemoteRefused(url, self.status, self.message)
        too_long = re.search(r"maximum context length is (\d+) tokens", self.message)
        if too_long:
            limit = int(too_long[1])
            counted = re.search(r"(\d+) (?:input )?tokens", self.message[too_long.end() :])
            prompt_tokens = int(counted[1]) if counted else limit
            return PromptTooLong(request_id, prompt_tokens, limit - 1)
        if limit is not None and "max_tokens must be at least 1, got 0" in self.message:
            return PromptTooLong(request_id, limit, limit - 1)  # the prompt fills the whole context
        return InvalidRequest(request_id, self.message)

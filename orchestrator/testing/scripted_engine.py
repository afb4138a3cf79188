"""An engine that answers what a script says."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from blake3 import blake3

from serving.errors import EngineClosed, PromptTooLong, ServingError, ToolsNotSupported
from serving.generation import (
    Chunk,
    Completion,
    EngineInfo,
    GenerationRequest,
    Message,
    Token,
    ToolCall,
    Usage,
    check_request,
    last_completion,
)

Script = Callable[[GenerationRequest], str | Sequence[Token] | Message]
"""The answer to a request: its text; its tokens, to test what depends on log-probabilities; or the
assistant's turn with tool calls, for a request with tools."""


class ScriptedEngine:
    """Answers each request with what its script returns; a script may raise a ServingError.

    It behaves like a real engine: answers stream word by word, one token a word, each after
    `token_s`; a cancelled request is aborted; close() fails running requests at once. The words of
    a text are certain: their log-probability is 0.

    Args:
        tool_parser: of its info; "": it raises ToolsNotSupported for a request with tools.
        embedding: the vector of a text; by default one of length 1 that depends on the whole text.
        model: the name of its model.
    Attributes:
        requests: all submitted requests, in order.
        embedded: the texts of each call of embed(), in order.
        aborted: ids of requests that were cancelled before their answers were complete.
        num_running: requests being answered now.
        num_starts: calls of start() so far.
    """

    def __init__(
        self,
        script: Script,
        *,
        token_s: float = 0.0,
        max_model_tokens: int = 100_000,
        tool_parser: str = "",
        embedding: Callable[[str], Sequence[float]] | None = None,
        model: str = "script",
    ) -> None:
        self.requests: list[GenerationRequest] = []
        self.embedded: list[tuple[str, ...]] = []
        self.aborted: list[str] = []
        self.num_running = 0
        self.num_starts = 0
        self._script = script
        self._token_s = token_s
        self._limit = max_model_tokens
        self._tool_parser = tool_parser
        self._embedding = embedding or _unit_vector
        self._model = model
        self._closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._closed.is_set()

    @property
    def info(self) -> EngineInfo:
        """The engine's name, model and context window."""
        return EngineInfo(
            name="scripted",
            model=self._model,
            random_weights=False,
            max_model_tokens=self._limit,
            tool_parser=self._tool_parser,
        )

    async def start(self) -> None:
        """Loads nothing; raises EngineClosed after close()."""
        if self.is_closed:
            raise EngineClosed(self.info.model)
        self.num_starts += 1

    async def generate(self, request: GenerationRequest) -> Completion:
        """The whole scripted answer."""
        return await last_completion(self.stream(request))

    async def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        """The scripted answer, word by word."""
        if self.is_closed:
            raise EngineClosed(self.info.model)
        check_request(request)
        self.requests.append(request)
        if request.tools and not self._tool_parser:
            raise ToolsNotSupported(request.request_id, "this script has no tool_parser")
        prompt_tokens = _num_words(request)
        if prompt_tokens >= self._limit:
            raise PromptTooLong(request.request_id, prompt_tokens, self._limit)
        began_s = time.monotonic()
        answer = self._script(request)
        calls: tuple[ToolCall, ...] = ()
        if isinstance(answer, Message):
            assert request.tools or not answer.tool_calls, "the request has no tools"
            calls, answer = answer.tool_calls, answer.text
        whole = _tokens_of(answer)
        tokens = whole if request.max_tokens is None else whole[: request.max_tokens]
        is_cut = len(tokens) < len(whole)
        pieces = [token.text for token in tokens]
        is_finished = False
        self.num_running += 1
        try:
            for index, piece in enumerate(pieces):
                await self._pass_a_token()
                is_last = index == len(pieces) - 1
                is_finished = is_last
                completion = Completion(
                    request_id=request.request_id,
                    text="".join(pieces),
                    finish_reason="length" if is_cut else "stop",
                    usage=Usage(prompt_tokens, len(pieces)),
                    ttft_s=self._token_s,
                    e2el_s=time.monotonic() - began_s,
                    tokens=_with_top(tokens, request.logprobs),
                    tool_calls=calls,
                )
                yield Chunk(piece, completion if is_last else None)
        except ServingError:
            is_finished = True
            raise
        finally:
            self.num_running -= 1
            if not is_finished:
                self.aborted.append(request.request_id)

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """The vector of each text, after `token_s`."""
        if self.is_closed:
            raise EngineClosed(self.info.model)
        self.embedded.append(tuple(texts))
        await self._pass_a_token()
        return [[float(value) for value in self._embedding(text)] for text in texts]

    async def close(self) -> None:
        """Fail running requests, and all later ones."""
        self._closed.set()

    async def _pass_a_token(self) -> None:
        """Wait for one token's time; raises EngineClosed if the engine is closed meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._token_s):
                await self._closed.wait()
                raise EngineClosed(self.info.model)


def _unit_vector(text: str) -> list[float]:
    """Eight numbers from a text's hash, of length 1 together."""
    numbers = [byte - 127.5 for byte in blake3(text.encode()).digest(8)]
    length = math.hypot(*numbers)
    return [number / length for number in numbers]


def _tokens_of(answer: str | Sequence[Token]) -> list[Token]:
    if not isinstance(answer, str):
        return list(answer)
    first, *others = answer.split(" ")
    return [Token(text, 0.0, ((text, 0.0),)) for text in (first, *(f" {word}" for word in others))]


def _with_top(tokens: Sequence[Token], logprobs: int | None) -> tuple[Token, ...]:
    """The tokens with as many alternatives as a request asks for; none without logprobs."""
    if logprobs is None:
        return ()
    return tuple(replace(token, top=token.top[:logprobs]) for token in tokens)


def _num_words(request: GenerationRequest) -> int:
    if isinstance(request.prompt, str):
        return len(request.prompt.split())
    return sum(len(turn.text.split()) for turn in request.prompt)

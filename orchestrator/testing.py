"""For tests of flows: an engine that answers by script, a clock that moves when told, crashes."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Literal

from serving.errors import EngineClosed, PromptTooLong, ServingError
from serving.generation import (
    Chunk,
    Completion,
    EngineInfo,
    GenerationRequest,
    Usage,
    last_completion,
)
from store.session import Store
from store.unit_of_work import Transaction

Script = Callable[[GenerationRequest], str]


class ScriptedEngine:
    """Answers each request with what its script returns; a script may raise a ServingError.

    It behaves as engines do: answers stream word by word, a token a word, each after
    `token_s`; a cancelled request is aborted; close() fails those that still run, at once.

    Attributes:
        requests: every request submitted, in order.
        aborted: ids of requests whose caller went away before the answer was complete.
        num_running: requests being answered now.
        num_starts: how often start() was called.
    """

    def __init__(
        self, script: Script, *, token_s: float = 0.0, max_model_tokens: int = 100_000
    ) -> None:
        self.requests: list[GenerationRequest] = []
        self.aborted: list[str] = []
        self.num_running = 0
        self.num_starts = 0
        self._script = script
        self._token_s = token_s
        self._limit = max_model_tokens
        self._closed = asyncio.Event()

    @property
    def is_closed(self) -> bool:
        """Whether close() was called."""
        return self._closed.is_set()

    @property
    def info(self) -> EngineInfo:
        """What this engine is."""
        return EngineInfo(
            name="scripted",
            model="script",
            random_weights=False,
            max_model_tokens=self._limit,
        )

    async def start(self) -> None:
        """Nothing to load; raises EngineClosed after close()."""
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
        self.requests.append(request)
        prompt_tokens = _num_words(request)
        if prompt_tokens >= self._limit:
            raise PromptTooLong(request.request_id, prompt_tokens, self._limit)
        began_s = time.monotonic()
        words = self._script(request).split(" ")
        limit = len(words) if request.max_tokens is None else request.max_tokens
        cut = len(words) > limit
        pieces = [word if index == 0 else " " + word for index, word in enumerate(words[:limit])]
        finished = False
        self.num_running += 1
        try:
            for index, piece in enumerate(pieces):
                await self._pass_a_token()
                last = index == len(pieces) - 1
                finished = last
                completion = Completion(
                    request_id=request.request_id,
                    text="".join(pieces),
                    finish_reason="length" if cut else "stop",
                    usage=Usage(prompt_tokens, len(pieces)),
                    ttft_s=self._token_s,
                    e2el_s=time.monotonic() - began_s,
                )
                yield Chunk(piece, completion if last else None)
        except ServingError:
            finished = True
            raise
        finally:
            self.num_running -= 1
            if not finished:
                self.aborted.append(request.request_id)

    async def close(self) -> None:
        """Fail what still runs, and what comes later."""
        self._closed.set()

    async def _pass_a_token(self) -> None:
        """Wait for as long as a token takes, or until the engine is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._token_s):
                await self._closed.wait()
                raise EngineClosed(self.info.model)


def crash_at(store: Store, number: int, when: Literal["before", "after"]) -> None:
    """Have this process die at one of a store's writes, as by kill -9.

    Args:
        number: of the write, 0 the next one; there are two moments at each, and a run that is
            killed at all of them in turn was killed everywhere that matters.
        when: before it begins, or after it is committed.
    """
    transaction, count = store.transaction, itertools.count()

    @asynccontextmanager
    async def deadly() -> AsyncIterator[Transaction]:
        is_last = next(count) == number
        if is_last and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        async with transaction() as tx:
            yield tx
        if is_last:
            os.kill(os.getpid(), signal.SIGKILL)

    setattr(store, "transaction", deadly)  # noqa: B010 - of this one store


class VirtualClock:
    """A clock that stands still until `advance` is called."""

    def __init__(self, start: datetime | None = None) -> None:
        self._start = start or datetime(2026, 1, 1, tzinfo=UTC)
        self._elapsed_s = 0.0

    def now_s(self) -> float:
        """Seconds by which the clock was advanced."""
        return self._elapsed_s

    def wall(self) -> datetime:
        """The wall time that belongs to it."""
        return self._start + timedelta(seconds=self._elapsed_s)

    def advance(self, seconds: float) -> None:
        """Move the clock forward."""
        assert seconds >= 0, "time does not run backwards"
        self._elapsed_s += seconds


def _num_words(request: GenerationRequest) -> int:
    if isinstance(request.prompt, str):
        return len(request.prompt.split())
    return sum(len(turn.content.split()) for turn in request.prompt)

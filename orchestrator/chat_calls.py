"""One call of a chat model on our engines: in the run that it is part of, else best effort."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast
from uuid import UUID

from orchestrator.calls import run_llm_call
from orchestrator.context import Position, current_or_none, moved, none_if_infinite
from orchestrator.errors import DeadlineExceeded
from orchestrator.graph_record import GraphRecorder
from orchestrator.wiring import shared_runtime
from serving.generation import (
    Chunk,
    Completion,
    Engine,
    EngineInfo,
    GenerationRequest,
    Message,
    last_completion,
)

OnText = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatCall:
    """What a chat model is asked; as GenerationRequest has it."""

    prompt: tuple[Message, ...]
    schema: Mapping[str, Any] | None
    max_tokens: int | None
    temperature: float
    top_p: float
    seed: int | None
    stop: tuple[str, ...]


Place = tuple[GraphRecorder, UUID]
"""A call in a graph that is recorded."""


class Answered(NamedTuple):
    """The answer to it, and what gave it."""

    completion: Completion
    info: EngineInfo


async def answered(
    call: ChatCall,
    place: Place | None,
    on_text: OnText | None = None,
) -> Answered:
    """Ask, on the loop of the run or of the runtime; cancelling aborts the request.

    Args:
        place: in a graph that is recorded; None: where the code stands.
        on_text: called with each piece of new text as it comes.
    Raises:
        DeadlineExceeded, RunEnded: the run's time was over first.
        And what the engine and the store raise.
    """
    if place is not None:
        recorder, run_id = place
        if recorder.position(run_id) is not None:
            return await recorder.answer(run_id, lambda here: _in_run(here, call, on_text))
    position = current_or_none()
    if position is None:
        return await _alone(call, on_text)
    # A call from a thread is nobody's task, and no deadline around it would cancel it.
    allowed_s = none_if_infinite(max(position.remaining_s(), 0.0))
    try:
        async with asyncio.timeout(allowed_s) as limit:
            return await _in_run(position, call, on_text)
    except TimeoutError:
        if not limit.expired() or allowed_s is None:
            raise
        raise DeadlineExceeded(position.scope.path or position.run.flow, allowed_s) from None


async def _in_run(position: Position, call: ChatCall, on_text: OnText | None) -> Answered:
    run = position.run
    if call.stop or call.top_p != 1.0:
        adjusted = _Adjusted(run.engine, call)
        position = moved(position, run=replace(run, engine=adjusted))
    completion = await run_llm_call(
        position,
        prompt=call.prompt,
        schema=call.schema,
        max_tokens=call.max_tokens,
        temperature=call.temperature,
        seed=call.seed,
        on_text=on_text,
    )
    return Answered(completion, run.engine.info)


async def _alone(call: ChatCall, on_text: OnText | None) -> Answered:
    request = GenerationRequest(
        request_id=f"chat-{secrets.token_hex(6)}",
        prompt=call.prompt,
        schema=call.schema,
        max_tokens=call.max_tokens,
        temperature=call.temperature,
        top_p=call.top_p,
        seed=call.seed,
        stop=call.stop,
    )
    async with shared_runtime() as runtime:
        await runtime.engine.start()
        chunks = runtime.engine.stream(request)
        completion = await last_completion(_told(chunks, on_text))
        return Answered(completion, runtime.engine.info)


async def _told(chunks: AsyncIterator[Chunk], on_text: OnText | None) -> AsyncIterator[Chunk]:
    async with aclosing(cast("Any", chunks)):
        async for chunk in chunks:
            if on_text is not None and chunk.text:
                on_text(chunk.text)
            yield chunk


class _Adjusted:
    """An engine whose requests have what a run's own calls do not: top_p and stop texts."""

    def __init__(self, engine: Engine, call: ChatCall) -> None:
        self._engine = engine
        self._call = call

    @property
    def info(self) -> EngineInfo:
        return self._engine.info

    async def start(self) -> None:
        await self._engine.start()

    def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
        return self._engine.stream(self._with(request))

    async def generate(self, request: GenerationRequest) -> Completion:
        return await self._engine.generate(self._with(request))

    async def close(self) -> None:
        await self._engine.close()

    def _with(self, request: GenerationRequest) -> GenerationRequest:
        return replace(request, top_p=self._call.top_p, stop=self._call.stop)

"""One call of a chat model on our engines: in the run that it is part of, else best effort."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple, cast
from uuid import UUID

from orchestrator.errors import DeadlineExceeded
from orchestrator.execution.calls import OnText, run_llm_call
from orchestrator.execution.context import CallContext, current_context_or_none, none_if_infinite
from orchestrator.langgraph.recording import GraphRecorder
from orchestrator.wiring import shared_runtime
from serving.generation import (
    Chunk,
    Completion,
    EngineInfo,
    GenerationRequest,
    last_completion,
)

Place = tuple[GraphRecorder, UUID]
"""A call in a graph that is recorded."""


class Answered(NamedTuple):
    """The answer to it, and what gave it."""

    completion: Completion
    info: EngineInfo


async def answered(
    call: GenerationRequest,
    place: Place | None,
    on_text: OnText | None = None,
) -> Answered:
    """Ask, on the loop of the run or of the runtime; cancelling aborts the request.

    Args:
        call: without an id, which it is given here.
        place: in a graph that is recorded; None: where the code stands.
        on_text: called with each piece of new text as it comes.
    Raises:
        DeadlineExceeded, RunEnded: the run's time was over first.
        And what the engine and the store raise.
    """
    if place is not None:
        recorder, run_id = place
        if recorder.context(run_id) is not None:
            return await recorder.answer(run_id, lambda here: _in_run(here, call, on_text))
    context = current_context_or_none()
    if context is None:
        return await _alone(call, on_text)
    # A call from a thread is nobody's task, and no deadline around it would cancel it.
    allowed_s = none_if_infinite(max(context.remaining_s(), 0.0))
    try:
        async with asyncio.timeout(allowed_s) as limit:
            return await _in_run(context, call, on_text)
    except TimeoutError:
        if not limit.expired() or allowed_s is None:
            raise
        raise DeadlineExceeded(context.step_path.text or context.run.flow, allowed_s) from None


async def _in_run(
    context: CallContext, call: GenerationRequest, on_text: OnText | None
) -> Answered:
    completion = await run_llm_call(context, call, on_text)
    return Answered(completion, context.run.engine.info)


async def _alone(call: GenerationRequest, on_text: OnText | None) -> Answered:
    request = replace(call, request_id=f"chat-{secrets.token_hex(6)}")
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

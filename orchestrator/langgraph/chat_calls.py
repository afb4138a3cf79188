"""One call of ChatOrchestrate: within the current run, else as best effort outside a run."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple, cast
from uuid import UUID

from orchestrator.errors import DeadlineExceeded
from orchestrator.execution.call_options import NO_OPTIONS, CallOptions
from orchestrator.execution.call_text import OnText
from orchestrator.execution.calls import run_llm_call
from orchestrator.execution.context import CallContext, current_context_or_none, none_if_infinite
from orchestrator.kept_runtime import shared_runtime
from orchestrator.langgraph.recording import GraphRecorder
from serving.generation import (
    Chunk,
    Completion,
    EngineInfo,
    GenerationRequest,
    last_completion,
)

GraphCall = tuple[GraphRecorder, UUID]
"""A model call in a recorded graph: the graph's recorder, and the call's id there."""


class ChatAnswer(NamedTuple):
    """An answer, and the engine that gave it."""

    completion: Completion
    info: EngineInfo


async def run_chat_call(
    request: GenerationRequest,
    graph_call: GraphCall | None,
    on_text: OnText | None = None,
    options: CallOptions = NO_OPTIONS,
) -> ChatAnswer:
    """Submit a request on the loop of the run or runtime; a cancellation aborts it.

    Args:
        request: its id and SLO are filled in here.
        graph_call: the call's place in a recorded graph; None: use the current context.
        on_text: called with each piece of new text as it arrives.
        options: the engine that answers it.
    Raises:
        DeadlineExceeded, RunEnded: the deadline passed or the run ended first.
        And what the engine and the store raise.
    """
    if graph_call is not None:
        recorder, run_id = graph_call
        if recorder.context(run_id) is not None:
            return await recorder.run_model_call(
                run_id, lambda here: _in_run(here, request, on_text, options)
            )
    context = current_context_or_none()
    if context is None:
        return await _outside_run(request, on_text, options)
    # A call from a thread runs in a task of its own, which no deadline around it would cancel.
    allowed_s = none_if_infinite(max(context.remaining_s(), 0.0))
    try:
        async with asyncio.timeout(allowed_s) as limit:
            return await _in_run(context, request, on_text, options)
    except TimeoutError:
        if not limit.expired() or allowed_s is None:
            raise
        raise DeadlineExceeded(context.step_path.text or context.run.flow, allowed_s) from None


async def _in_run(
    context: CallContext,
    request: GenerationRequest,
    on_text: OnText | None,
    options: CallOptions,
) -> ChatAnswer:
    completion = await run_llm_call(context, request, on_text, options)
    info = context.run.engines.info_for(options.engine, options.model)
    return ChatAnswer(completion, info)


async def _outside_run(
    request: GenerationRequest, on_text: OnText | None, options: CallOptions
) -> ChatAnswer:
    request = replace(request, request_id=f"chat-{secrets.token_hex(6)}")
    async with shared_runtime() as runtime:
        if options.engine is None:
            await runtime.engines.start()
        selected = await runtime.engines.select(options.engine, options.model)
        chunks = selected.engine.stream(request)
        completion = await last_completion(_with_callback(chunks, on_text))
        return ChatAnswer(completion, selected.info)


async def _with_callback(
    chunks: AsyncIterator[Chunk], on_text: OnText | None
) -> AsyncIterator[Chunk]:
    """The chunks, each passed to `on_text` as well."""
    async with aclosing(cast("Any", chunks)):
        async for chunk in chunks:
            if on_text is not None and chunk.text:
                on_text(chunk.text)
            yield chunk

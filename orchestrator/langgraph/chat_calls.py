"""One call of ChatOrchestrate: within the current run, else as best effort outside a run."""

from __future__ import annotations

import asyncio
import math
import secrets
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any, NamedTuple, cast
from uuid import UUID

from orchestrator.errors import DeadlineExceeded
from orchestrator.execution.call_options import NO_OPTIONS, CallOptions
from orchestrator.execution.call_text import OnText
from orchestrator.execution.calls import is_recorded, run_llm_call
from orchestrator.execution.context import CallContext, current_context_or_none
from orchestrator.execution.deadline_handling import cancel_after, is_expiry
from orchestrator.execution.engines import Engines
from orchestrator.kept_runtime import shared_runtime
from orchestrator.langgraph.recording import GraphRecorder
from orchestrator.tools.asking import Send, ToolAnswer, ToolRequest, ask_with_tools
from serving.generation import (
    Chunk,
    Completion,
    EngineInfo,
    GenerationRequest,
    last_completion,
)

GraphCall = tuple[GraphRecorder, UUID]
"""A model call in a recorded graph: the graph's recorder, and the call's id there."""


ChatRequest = GenerationRequest | ToolRequest


class ChatAnswer(NamedTuple):
    """An answer, and the engine that gave it."""

    answer: ToolAnswer
    info: EngineInfo


async def run_chat_call(
    request: ChatRequest,
    graph_call: GraphCall | None,
    on_text: OnText | None = None,
    options: CallOptions = NO_OPTIONS,
) -> ChatAnswer:
    """Submit a request on the loop of the run or runtime; a cancellation aborts it.

    Args:
        request: its id and SLO are filled in here. With tools the model is asked in its own format
            if the engine reads that; a recorded call is asked as it was then.
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
    allowed_s = max(context.remaining_s(), 0.0)
    if math.isinf(allowed_s):
        return await _in_run(context, request, on_text, options)
    try:
        async with cancel_after(allowed_s, context.run) as limit:
            return await _in_run(context, request, on_text, options)
    except (TimeoutError, asyncio.CancelledError) as error:
        if not is_expiry(error, limit, context) or _is_cancelled_from_outside(error):
            raise
        raise DeadlineExceeded(context.step_path.text or context.run.flow, allowed_s) from None


def _is_cancelled_from_outside(error: BaseException) -> bool:
    """Whether somebody has cancelled this task, as a deadline around it does."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0


async def _in_run(
    context: CallContext, request: ChatRequest, on_text: OnText | None, options: CallOptions
) -> ChatAnswer:
    engines = context.run.engines

    async def send(each: GenerationRequest, on_text: OnText | None) -> Completion:
        return await run_llm_call(context, each, on_text, options)

    if isinstance(request, ToolRequest) and request.native is not None:
        forms = (request.schema_bound, request.native)
        recorded = [form for form in forms if is_recorded(context, form)]
        reads_calls = not recorded and await _reads_tool_calls(engines, options)
        is_native = recorded == [request.native] or reads_calls
    else:
        is_native = False
    answer = await _ask(request, send, is_native, on_text)
    return ChatAnswer(answer, engines.info_for(options.engine, options.model))


async def _outside_run(
    request: ChatRequest, on_text: OnText | None, options: CallOptions
) -> ChatAnswer:
    request_id = f"chat-{secrets.token_hex(6)}"
    async with shared_runtime() as runtime:
        reads_calls = await _reads_tool_calls(runtime.engines, options)
        selected = await runtime.engines.select(options.engine, options.model)

        async def send(each: GenerationRequest, on_text: OnText | None) -> Completion:
            chunks = selected.engine.stream(replace(each, request_id=request_id))
            return await last_completion(_with_callback(chunks, on_text))

        answer = await _ask(request, send, reads_calls, on_text)
        return ChatAnswer(answer, selected.info)


async def _reads_tool_calls(engines: Engines, options: CallOptions) -> bool:
    """Whether the engine of a call reads tool calls in its model's own format; it is started."""
    if options.engine is None and options.model is None:
        await engines.start()
    return bool((await engines.select(options.engine, options.model)).info.tool_parser)


async def _ask(
    request: ChatRequest, send: Send, is_native: bool, on_text: OnText | None
) -> ToolAnswer:
    if isinstance(request, ToolRequest):
        return await ask_with_tools(request, send, is_native=is_native, on_text=on_text)
    completion = await send(request, on_text)
    return ToolAnswer(completion, completion.text, (), False)


async def _with_callback(
    chunks: AsyncIterator[Chunk], on_text: OnText | None
) -> AsyncIterator[Chunk]:
    """The chunks, each passed to `on_text` as well."""
    async with aclosing(cast("Any", chunks)):
        async for chunk in chunks:
            if on_text is not None and chunk.text:
                on_text(chunk.text)
            yield chunk

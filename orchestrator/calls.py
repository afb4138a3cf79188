"""One LLM or tool call of a run: intent recorded, promise made, outcome recorded."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from typing import Any, cast

from orchestrator.context import CallTrace, Position, none_if_infinite
from orchestrator.deadlines import call_slo
from orchestrator.events import CallFinished, CallStarted
from orchestrator.recorder import status_of
from patterns.nodes import Kind
from serving.generation import Chunk, Completion, Engine, GenerationRequest, Message
from store.records import CallKind, CallRecord


async def run_llm_call(
    position: Position,
    *,
    prompt: str | tuple[Message, ...],
    schema: Mapping[str, Any] | None,
    max_tokens: int | None,
    temperature: float,
    seed: int | None,
    on_text: Callable[[str], None] | None,
) -> Completion:
    """Submit one LLM call with its SLO; raises what the engine raises."""
    run = position.run
    identity = f"{run.engine.info.model}:{position.scope.name or run.flow}"
    async with _recorded(position, "llm", identity, _text_of(prompt)) as (trace, outcome):
        slo = call_slo(
            run_id=run.id,
            stage=trace.stage,
            stage_calls=position.stage_calls,
            stage_deadline=trace.deadline,
            deadline_at_s=position.deadline_at_s,
            now_s=run.clock.now_s(),
        )
        request = GenerationRequest(
            request_id=f"{run.id}-{trace.node}",
            prompt=prompt,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            schema=schema,
            slo=slo,
        )
        completion = await _generate(run.engine, request, on_text)
        trace.prompt_tokens = completion.usage.prompt_tokens
        trace.output_tokens = completion.usage.output_tokens
        outcome.update(
            prompt_tokens=completion.usage.prompt_tokens,
            output_tokens=completion.usage.output_tokens,
            cached_tokens=completion.usage.cached_tokens,
            ttft_s=completion.ttft_s,
            finish_reason=completion.finish_reason,
            output_text=completion.text,
        )
        return completion


@asynccontextmanager
async def tool_call(position: Position, name: str) -> AsyncIterator[None]:
    """Record a block as one tool call."""
    async with _recorded(position, "tool", name, ""):
        yield


async def _generate(
    engine: Engine, request: GenerationRequest, on_text: Callable[[str], None] | None
) -> Completion:
    if on_text is None:
        return await engine.generate(request)
    finished: Completion | None = None
    stream = cast("AsyncGenerator[Chunk]", engine.stream(request))
    async with aclosing(stream):  # so that the request is aborted at once where on_text raises
        async for chunk in stream:
            if chunk.text:
                on_text(chunk.text)
            finished = chunk.completion
    assert finished is not None, "a stream ends in a completion or an error"
    return finished


@asynccontextmanager
async def _recorded(
    position: Position, kind: Kind, identity: str, prompt_text: str
) -> AsyncIterator[tuple[CallTrace, dict[str, Any]]]:
    """Begin a call, and end it with whatever the block put into the outcome."""
    run = position.run
    now_s = run.clock.now_s()
    node, stage, parents = run.causality.begin()
    deadline = run.stage_deadlines.of(stage, now_s).by(position.deadline_at_s)
    trace = CallTrace(node, kind, identity, stage, now_s, deadline)
    run.calls.append(trace)
    sub_deadline_s = none_if_infinite(run.since_start_s(deadline.at_s))
    record = CallRecord(
        run_id=run.id,
        node=node,
        kind=CallKind(kind),
        identity=identity,
        step_path=position.scope.path,
        stage=stage,
        started_s=run.since_start_s(now_s),
        sub_deadline_s=sub_deadline_s,
        deadline_source=None if sub_deadline_s is None else deadline.source,
    )
    await run.recorder.call_started(record, parents=parents, prompt_text=prompt_text)
    outcome: dict[str, Any] = {}
    error: BaseException | None = None
    try:
        run.emit(CallStarted(run.id, node, kind, identity, stage, record.started_s, sub_deadline_s))
        yield trace, outcome
    except BaseException as caught:
        error = caught
        raise
    finally:
        ended_s = run.clock.now_s()
        if error is None:
            trace.ended_s = ended_s
            run.causality.end(node)
        await run.recorder.call_ended(node, error=error, **outcome)
        run.emit(
            CallFinished(
                run.id,
                node,
                stage,
                str(status_of(error)),
                run.since_start_s(ended_s),
                trace.output_tokens,
            )
        )


def _text_of(prompt: str | tuple[Message, ...]) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"{turn.role}: {turn.content}" for turn in prompt)

"""One LLM or tool call of a run: its start is recorded, its SLO computed, its outcome recorded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple, TypeVar, cast

from orchestrator.durability.digests import digest_of
from orchestrator.durability.error_codec import encode_error, mark_step
from orchestrator.durability.outcomes import status_of, type_of
from orchestrator.durability.uncertain_effects import uncertain_effect_of
from orchestrator.durability.values import ValueCodec
from orchestrator.events import CallFinished, CallStarted
from orchestrator.execution.call_text import CallText, OnText, TextTaken, part_if_left
from orchestrator.execution.context import CallContext, CallTrace, LiveRun, none_if_infinite
from orchestrator.execution.length_prediction import (
    LengthPrediction,
    count_pattern_use,
    predict_length,
    stage_record,
)
from orchestrator.execution.step_execution import (
    NewStep,
    Replayed,
    StepSpec,
    begin_or_replay,
    recorded_next,
    refuse,
    require_time,
)
from orchestrator.learning.stage_deadlines import RunTimes, StageDeadline, call_slo
from patterns.nodes import Kind
from serving.generation import Completion, GenerationRequest, Message, ToolCall
from store.records import CallKind, CallRecord, Effects, StageRecord, Status, StepKind, StepRecord

R = TypeVar("R")

LLM_STEP = StepSpec("llm", StepKind.LLM, ValueCodec("an answer", Completion))


async def run_llm_call(
    context: CallContext, request: GenerationRequest, on_text: OnText | None = None
) -> Completion:
    """Submit one LLM call with its SLO, or return its recorded answer.

    Args:
        request: its id and SLO are filled in here.
        on_text: called with each piece of new text as it arrives; of a TextTaken, the call ends
            once its flow has taken all of them.
    Raises what `begin_or_replay` raises, and the engine.
    """
    run = context.run
    spec = replace(LLM_STEP, arguments=_digest_of(request))
    step = await begin_or_replay(context, spec)
    if isinstance(step, Replayed):
        return _replayed(run, step, on_text)
    if spent := [budget for budget in context.budgets if budget.is_spent]:
        await refuse(*spent)
    for budget in context.budgets:
        budget.calls += 1
    text = _text_of(request.prompt)
    call = _begin(context, "llm", f"{run.engine.info.model}:{context.step_path.name or run.flow}")
    predicted = predict_length(run, call.trace, request, text)
    call_text = CallText(run, call.trace.node, step.record.path, on_text)
    async with _recorded(step, call, text, predicted) as outcome:
        request = replace(
            request,
            request_id=f"{run.id}-{call.trace.node}",
            slo=call_slo(
                run_id=run.id,
                run=RunTimes(run.started_s, run.deadline_at_s),
                stage=call.trace.stage,
                stage_calls=context.stage_calls,
                stage_deadline=call.stage_deadline,
                limit_at_s=context.deadline_at_s,
                now_s=run.clock.now_s(),
                num_programs=context.num_programs,
                length=predicted.sketch,
                user=run.user,
            ),
        )
        with part_if_left(on_text, outcome):
            completion = await call_text.generate(run.engine, request)
        usage = completion.usage
        call.trace.prompt_tokens = usage.prompt_tokens
        call.trace.output_tokens = usage.output_tokens
        call.trace.cached_tokens = usage.cached_tokens
        for budget in context.budgets:
            budget.tokens += usage.prompt_tokens + usage.output_tokens
        run.answers.add(usage.output_tokens)
        predicted.observe(usage.output_tokens)
        outcome.update(
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.output_tokens,
            cached_tokens=usage.cached_tokens,
            ttft_s=completion.ttft_s,
            finish_reason=completion.finish_reason,
            output_text=_with_calls(completion.text, completion.tool_calls),
            result=LLM_STEP.codec.dump(completion),
        )
        if isinstance(on_text, TextTaken):
            outcome["ended_at_s"] = run.clock.now_s()
            with part_if_left(on_text, outcome):
                await on_text.until_taken()
        return completion


def _replayed(run: LiveRun, step: Replayed, on_text: OnText | None) -> Completion:
    """The recorded answer, whose text is passed on in one piece.

    Raises:
        FlowChanged: the flow had read only a part of it, and now asks for the whole.
    """
    recorded: Completion = step.value
    assert step.record is not None, "an LLM call is not reconciled"
    call = run.recorded_steps.calls_of(step.record.path)[-1]
    if call.status is not Status.CANCELLED:
        run.answers.add(recorded.usage.output_tokens)
    elif isinstance(on_text, TextTaken):
        on_text.reads_on = partial(run.recorded_steps.require_left, step.record)
    else:
        run.recorded_steps.require_left(step.record)
    CallText(run, call.node, step.record.path, on_text).replay(recorded.text)
    return recorded


def is_recorded(context: CallContext, request: GenerationRequest) -> bool:
    """Whether the next LLM call here is recorded, as one of this request."""
    digest = _digest_of(request)
    step = recorded_next(context, LLM_STEP.name, digest)
    return step is not None and step.arguments == digest


async def run_tool_call(
    context: CallContext, spec: StepSpec, work: Callable[[CallContext], Awaitable[R]]
) -> R:
    """Run a tool as one call of the run, or return its recorded result.

    Raises:
        ResultNotSerialisable: its result cannot be recorded.
        And as `begin_or_replay`, and what the work raises.
    """
    step = await begin_or_replay(context, spec)
    if isinstance(step, Replayed):
        recorded: R = step.value
        return recorded
    async with _recorded(step, _begin(context, "tool", spec.name)) as outcome:
        outcome["result"], value = spec.codec.round_trip(await work(step.context))
        return cast("R", value)


class _NewCall(NamedTuple):
    """A call with its node, stage and deadline.

    Attributes:
        parents: nodes of the calls that it depends on.
        stage_deadline: of its stage; the call's own (in `trace`) is the earlier of this and the
            deadline around the call.
        stage: the record of its stage, if that begins with this call.
    """

    trace: CallTrace
    parents: tuple[int, ...]
    stage_deadline: StageDeadline
    stage: StageRecord | None


def _begin(context: CallContext, kind: Kind, identity: str) -> _NewCall:
    """Give a call its node, stage and sub-deadline; nothing is recorded yet."""
    run = context.run
    now_s = run.clock.now_s()
    node, stage, parents = run.causality.begin()
    begins_stage = not run.stage_deadlines.has(stage)
    stage_deadline = run.stage_deadlines.of(
        stage, now_s, first_call=(kind, identity), summary_of=run.stage_so_far
    )
    deadline = stage_deadline.not_after(context.deadline_at_s)
    record = stage_record(run, stage, now_s, deadline) if begins_stage else None
    if record is not None:
        count_pattern_use(run, record)
    trace = CallTrace(node, kind, identity, stage, now_s, deadline)
    run.calls.append(trace)
    return _NewCall(trace, parents, stage_deadline, record)


@asynccontextmanager
async def _recorded(
    step: NewStep,
    call: _NewCall,
    prompt_text: str = "",
    predicted: LengthPrediction | None = None,
) -> AsyncIterator[dict[str, Any]]:
    """Record a call's start, and its end with what the block puts into the yielded dict.

    The dict's items are keyword arguments of `RunRecorder.call_ended`.
    """
    run, trace = step.context.run, call.trace
    record = _record_of(step, call, predicted)
    await run.recorder.call_started(
        record,
        step=step.record,
        began_before=step.began_before,
        parents=call.parents,
        stage=call.stage,
        resumed=bool(run.recorded_steps),
        prompt_text=prompt_text,
    )
    outcome: dict[str, Any] = {}
    error: BaseException | None = None
    num_cancellations = _num_cancellations()
    try:
        run.emit(_started(run, record))
        await require_time(step.context)
        yield outcome
    except BaseException as caught:
        error = caught
        part = outcome.pop("part", None)
        outcome["is_part"] = part is not None
        outcome["result"] = encode_error(caught) if part is None else LLM_STEP.codec.dump(part)
        mark_step(caught, run.id, step.record.path)
        if step.record.effects is Effects.EXTERNAL:
            if _num_cancellations() > num_cancellations:
                error = asyncio.CancelledError()  # even if the tool raised another error for it
            effect = uncertain_effect_of(_ended(step.record, error))
            run.uncertain_effects.add(step.record, effect)
        raise
    finally:
        ended_s = outcome.pop("ended_at_s", run.clock.now_s())
        outcome["ended_s"] = run.since_start_s(ended_s)
        if error is None:
            run.recorded_steps.step_succeeded(step.context.step_path)
            trace.ended_s = ended_s
            outcome["recorded"] = partial(run.causality.end, trace.node)
        await run.recorder.call_ended(trace.node, step.record, error=error, **outcome)
        run.emit(
            CallFinished(
                run.id,
                trace.node,
                trace.stage,
                str(status_of(error)),
                outcome["ended_s"],
                trace.output_tokens,
                prompt_tokens=trace.prompt_tokens,
                finish_reason=outcome.get("finish_reason"),
                error_type=type_of(error),
            )
        )


def _ended(step: StepRecord, error: BaseException) -> StepRecord:
    return replace(step, status=status_of(error), error_type=type_of(error))


def _num_cancellations() -> int:
    """How many cancellations of this task are pending, as asyncio counts them."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _record_of(step: NewStep, call: _NewCall, predicted: LengthPrediction | None) -> CallRecord:
    run, trace = step.context.run, call.trace
    sub_deadline_s = none_if_infinite(run.since_start_s(trace.deadline.at_s))
    return CallRecord(
        run_id=run.id,
        node=trace.node,
        kind=CallKind(trace.kind),
        identity=trace.identity,
        step_path=step.record.path,
        stage=trace.stage,
        started_s=run.since_start_s(trace.began_s),
        sub_deadline_s=sub_deadline_s,
        deadline_source=None if sub_deadline_s is None else trace.deadline.source,
        **({} if predicted is None else predicted.columns()),
    )


def _started(run: LiveRun, record: CallRecord) -> CallStarted:
    """The event for a call that begins."""
    info = run.engine.info if record.kind is CallKind.LLM else None
    return CallStarted(
        run.id,
        record.node,
        record.kind.value,
        record.identity,
        record.stage,
        record.started_s,
        record.sub_deadline_s,
        sub_deadline_source=record.deadline_source,
        path=record.step_path,
        engine=None if info is None else info.name,
        model=None if info is None else info.model,
        predicted_output_tokens=record.length_bound,
    )


def _digest_of(request: GenerationRequest) -> bytes | None:
    """A digest of what asked for a recorded answer; how it was sampled may change."""
    arguments: list[Any] = [request.prompt, request.schema]
    if request.logprobs is not None:  # an answer recorded without them has none
        arguments.append(request.logprobs)
    if request.tools:
        arguments.append(request.tools)
    return digest_of(*arguments)


def _text_of(prompt: str | tuple[Message, ...]) -> str:
    if isinstance(prompt, str):
        return prompt
    return "\n\n".join(f"{turn.role}: {_with_calls(turn.text, turn.tool_calls)}" for turn in prompt)


def _with_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """The text of a turn and its tool calls, for people."""
    return "\n".join([*([text] if text else []), *(f"{c.name} {c.arguments}" for c in calls)])

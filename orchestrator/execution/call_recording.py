"""How a call of a run is recorded: its node, stage and sub-deadline, its start and its outcome."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from orchestrator.durability.error_codec import encode_error, mark_step
from orchestrator.durability.outcomes import status_of, type_of
from orchestrator.durability.uncertain_effects import uncertain_effect_of
from orchestrator.durability.values import ValueCodec
from orchestrator.events import CallFinished, CallStarted
from orchestrator.execution.context import CallTrace, LiveRun, none_if_infinite
from orchestrator.execution.engines import Selected
from orchestrator.execution.length_prediction import (
    LengthPrediction,
    count_pattern_use,
    stage_record,
)
from orchestrator.execution.step_execution import NewStep, StepSpec, require_time
from orchestrator.learning.stage_deadlines import StageDeadline
from patterns.nodes import Kind
from serving.generation import Completion
from store.records import (
    CallKind,
    CallRecord,
    Effects,
    StageRecord,
    Status,
    StepKind,
    StepRecord,
)

LLM_STEP = StepSpec("llm", StepKind.LLM, ValueCodec("an answer", Completion))


class NewCall(NamedTuple):
    """A call with its node, stage and deadline.

    Attributes:
        parents: nodes of the calls that it depends on.
        stage_deadline: of its stage; the call's own (in `trace`) is the earlier of this and the
            deadline around the call.
        stage: the record of its stage, if that begins with this call.
        selected: the engine that answers it; None for tools.
    """

    trace: CallTrace
    parents: tuple[int, ...]
    stage_deadline: StageDeadline
    stage: StageRecord | None
    selected: Selected | None = None


def begin_call(
    step: NewStep, kind: Kind, identity: str, selected: Selected | None = None
) -> NewCall:
    """Give a call its node, stage and sub-deadline; nothing is recorded yet."""
    context, run = step.context, step.context.run
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
    trace = CallTrace(node, kind, identity, step.record.path, stage, now_s, deadline)
    run.call_begins(trace)
    return NewCall(trace, parents, stage_deadline, record, selected)


@asynccontextmanager
async def recorded_call(
    step: NewStep,
    call: NewCall,
    prompt_text: str = "",
    predicted: LengthPrediction | None = None,
) -> AsyncIterator[dict[str, Any]]:
    """Record a call's start, and its end with what the block puts into the yielded dict.

    The dict's items are keyword arguments of `RunRecorder.call_ended`, and those that
    `orchestrator.execution.call_text` puts there.
    """
    run, trace = step.context.run, call.trace
    record = _record_of(step, call, predicted)
    cut_off = partial(_cut_off, run, trace)
    await run.recorder.call_started(
        record,
        step=step.record,
        began_before=step.began_before,
        parents=call.parents,
        stage=call.stage,
        resumed=bool(run.recorded_steps),
        prompt_text=prompt_text,
        cut_off=cut_off,
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
        part, text = outcome.pop("part", None), outcome.pop("text_before_error", "")
        outcome["is_part"] = part is not None
        outcome["result"] = (
            encode_error(caught, text=text) if part is None else LLM_STEP.codec.dump(part)
        )
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
            run.call_completed(trace, ended_s)
            outcome["recorded"] = partial(run.causality.end, trace.node)
        elif status_of(error) is Status.CANCELLED:
            outcome["recorded"] = partial(cut_off, ended_s)
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


def _cut_off(run: LiveRun, trace: CallTrace, at_s: float | None = None) -> None:
    """A call was cut off: it took its time, and what comes later came after it."""
    run.causality.end(run.call_was_cut_off(trace, run.clock.now_s() if at_s is None else at_s))


def _ended(step: StepRecord, error: BaseException) -> StepRecord:
    return replace(step, status=status_of(error), error_type=type_of(error))


def _num_cancellations() -> int:
    """How many cancellations of this task are pending, as asyncio counts them."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


def _record_of(step: NewStep, call: NewCall, predicted: LengthPrediction | None) -> CallRecord:
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
        **_engine_columns(call.selected),
        **({} if predicted is None else predicted.columns()),
    )


def _engine_columns(selected: Selected | None) -> dict[str, Any]:
    """The columns of a call's record that say which engine answers it."""
    if selected is None:
        return {}
    info = selected.info
    return {
        "engine": info.name,
        "engine_name": selected.name,
        "model": info.model,
        "random_weights": info.random_weights,
    }


def _started(run: LiveRun, record: CallRecord) -> CallStarted:
    """The event for a call that begins."""
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
        engine=record.engine,
        engine_name=record.engine_name,
        model=record.model,
        random_weights=record.random_weights,
        predicted_output_tokens=record.length_bound,
    )

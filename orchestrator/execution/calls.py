"""One LLM or tool call of a run: its start is recorded, its SLO computed, its outcome recorded."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar, cast

from orchestrator.durability.digests import digest_of
from orchestrator.durability.error_codec import recorded_text
from orchestrator.execution.call_options import NO_OPTIONS, CallOptions
from orchestrator.execution.call_recording import LLM_STEP, NewCall, begin_call, recorded_call
from orchestrator.execution.call_text import (
    CallText,
    OnText,
    TextTaken,
    estimate_usage,
    part_if_left,
)
from orchestrator.execution.context import CallContext, CallTrace, LiveRun
from orchestrator.execution.length_prediction import LengthPrediction, predict_length
from orchestrator.execution.step_execution import (
    Replayed,
    StepSpec,
    begin_or_replay,
    recorded_next,
    refuse,
)
from orchestrator.learning.stage_deadlines import RunTimes, call_slo
from serving.generation import Completion, GenerationRequest, Message, ToolCall, Usage
from serving.slo import Slo
from store.records import CallRecord, Status, StepRecord

R = TypeVar("R")

IMAGE_MARK = "[image]"
"""What stands for an image in recorded prompts."""


async def run_llm_call(
    context: CallContext,
    request: GenerationRequest,
    on_text: OnText | None = None,
    options: CallOptions = NO_OPTIONS,
) -> Completion:
    """Submit one LLM call with its SLO, or return its recorded answer.

    Args:
        request: its id and SLO are filled in here.
        on_text: called with each piece of new text as it arrives; of a TextTaken, the call ends
            once its flow has taken all of them.
        options: the engine that answers it, and targets of its own.
    Raises what `begin_or_replay` raises, and the engine.
    """
    run = context.run
    spec = replace(
        LLM_STEP,
        arguments=_digest_of(request),
        before_error=partial(_replay_text_before_error, run, on_text),
    )
    step = await begin_or_replay(context, spec)
    if isinstance(step, Replayed):
        return _replayed(run, step, on_text)
    await _require_budget(context)
    selected = await run.engines.try_select(options.engine, options.model)
    await _require_budget(context)  # the engine may just have been started
    for budget in context.budgets:
        budget.calls += 1
    text = _text_of(request.prompt)
    identity = f"{selected.info.model}:{context.step_path.name or run.flow}"
    call = begin_call(step, "llm", identity, selected)
    predicted = predict_length(run, call.trace, request, text)
    call_text = CallText(run, call.trace.node, step.record.path, on_text)
    async with recorded_call(step, call, text, predicted) as outcome:
        slo = _slo_of(context, call, predicted)
        request = replace(
            request,
            request_id=f"{run.id}-{call.trace.node}",
            slo=options.applied_to(slo),
            trace_headers=run.trace_headers(run.id, step.record.path),
        )
        count = partial(_count, context, call.trace, outcome)
        with part_if_left(on_text, outcome, lambda part: count(estimate_usage(text, part))):
            async with call_text.recorded_with_error(outcome):
                completion = await call_text.generate(selected.engine, request)
        usage = count(completion.usage)
        run.answers.add(usage.output_tokens)
        predicted.observe(usage.output_tokens)
        outcome.update(
            ttft_s=completion.ttft_s,
            finish_reason=completion.finish_reason,
            output_text=_with_calls(completion.text, completion.tool_calls),
            result=LLM_STEP.codec.dump(completion),
        )
        if isinstance(on_text, TextTaken):
            outcome["ended_at_s"] = run.clock.now_s()
            with part_if_left(on_text, outcome, lambda _: usage):
                async with call_text.recorded_with_error(outcome):
                    await on_text.until_taken()
        return completion


def _count(context: CallContext, trace: CallTrace, outcome: dict[str, Any], usage: Usage) -> Usage:
    """Count a call's tokens in the budgets around, and put them into its outcome."""
    trace.prompt_tokens = usage.prompt_tokens
    trace.output_tokens = usage.output_tokens
    trace.cached_tokens = usage.cached_tokens
    for budget in context.budgets:
        budget.tokens += usage.prompt_tokens + usage.output_tokens
    outcome.update(
        prompt_tokens=usage.prompt_tokens,
        output_tokens=usage.output_tokens,
        cached_tokens=usage.cached_tokens,
    )
    return usage


def _replayed(run: LiveRun, step: Replayed, on_text: OnText | None) -> Completion:
    """The recorded answer, whose text is passed on in one piece.

    Raises:
        FlowChanged: the flow had read only a part of it, and now asks for the whole.
    """
    recorded: Completion = step.value
    assert step.record is not None, "an LLM call is not reconciled"
    call = _call_of(run, step.record)
    if call.status is not Status.CANCELLED:
        run.answers.add(recorded.usage.output_tokens)
    elif isinstance(on_text, TextTaken):
        on_text.reads_on = partial(run.recorded_steps.require_left, step.record)
    else:
        run.recorded_steps.require_left(step.record)
    CallText(run, call.node, step.record.path, on_text).replay(recorded.text)
    return recorded


def _replay_text_before_error(
    run: LiveRun, on_text: OnText | None, step: StepRecord, recorded: bytes | None
) -> None:
    text = recorded_text(recorded)
    CallText(run, _call_of(run, step).node, step.path, on_text).replay(text)


def _call_of(run: LiveRun, step: StepRecord) -> CallRecord:
    """The record of the call that gave a recorded step its outcome."""
    return run.recorded_steps.calls_of(step.path)[-1]


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
    async with recorded_call(step, begin_call(step, "tool", spec.name)) as outcome:
        outcome["result"], value = spec.codec.round_trip(await work(step.context))
        return cast("R", value)


async def _require_budget(context: CallContext) -> None:
    if spent := [budget for budget in context.budgets if budget.is_spent]:
        await refuse(*spent)


def _slo_of(context: CallContext, call: NewCall, predicted: LengthPrediction) -> Slo:
    run = context.run
    return call_slo(
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
    return "\n\n".join(
        f"{turn.role}: {_with_calls(_shown(turn), turn.tool_calls)}" for turn in prompt
    )


def _with_calls(text: str, calls: Sequence[ToolCall]) -> str:
    """The text of a turn and its tool calls, for people."""
    return "\n".join([*([text] if text else []), *(f"{c.name} {c.arguments}" for c in calls)])


def _shown(turn: Message) -> str:
    """A turn's content as text, with a mark for each image: their bytes are not recorded."""
    if isinstance(turn.content, str):
        return turn.content
    return "".join(part if isinstance(part, str) else IMAGE_MARK for part in turn.content)

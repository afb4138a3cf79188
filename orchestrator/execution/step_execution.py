"""Executes a step, or replays it: a step with a recorded outcome is not executed again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, NoReturn, TypeVar

from orchestrator.cancellation import let_the_deadline_pass, until_ended
from orchestrator.durability.digests import digest_of
from orchestrator.durability.error_codec import decode_error, encode_error, mark_step
from orchestrator.durability.outcomes import status_of, type_of
from orchestrator.durability.uncertain_effects import UncertainEffect, uncertain_effect_of
from orchestrator.durability.values import ValueCodec
from orchestrator.errors import OutcomeUnknown
from orchestrator.events import StepFinished, StepStarted
from orchestrator.execution.budgets import Budget
from orchestrator.execution.context import (
    CallContext,
    LiveRun,
    current_worker,
    set_context,
    using_context,
)
from orchestrator.execution.step_cache import CacheLookup, cached_result
from orchestrator.execution.threads import require_run_loop
from store.records import Effects, Status, StepKind, StepRecord
from store.state_records import StateChange

R = TypeVar("R")

Reconcile = Callable[..., Awaitable[Any]]
"""Finds out whether an external effect took place: called with the tool's arguments, it returns
`Happened(result)` if so, or None if not, and the tool is then called."""


class Happened(NamedTuple):
    """What `reconcile` returns if the external effect did take place, with this result."""

    result: Any


@dataclass(frozen=True, slots=True)
class StepSpec:
    """A step before it begins.

    Attributes:
        codec: of its result.
        effects: what repeating the step would do.
        reconcile: as Reconcile, with the arguments bound.
        cache: how to look for a result of another run; None: the step is not cached.
        arguments: a digest of its arguments; None: they are not compared on replay.
        before_error: called with its record and its recorded error, as `encode_error` made it,
            before that error is raised again.
        workspace, state_before: the workspace that it acts in or beside, and its state now.
    """

    name: str
    kind: StepKind
    codec: ValueCodec
    effects: Effects = Effects.PURE
    reconcile: Callable[[], Awaitable[Any]] | None = None
    cache: CacheLookup | None = None
    arguments: bytes | None = None
    before_error: Callable[[StepRecord, bytes | None], None] | None = None
    workspace: str | None = None
    state_before: str | None = None


class NewStep(NamedTuple):
    """A step that must be executed now.

    Attributes:
        context: of the code within it.
        record: the step as it will be recorded.
        began_before: whether it is recorded already, with its end unknown.
    """

    context: CallContext
    record: StepRecord
    began_before: bool


class Replayed(NamedTuple):
    """A step that is not executed, since its result is known.

    Attributes:
        record: of the step; None if `reconcile` gave the result.
        reconciled: the step's record if `reconcile` gave the result.
    """

    value: Any
    record: StepRecord | None = None
    reconciled: StepRecord | None = None


async def begin_or_replay(context: CallContext, spec: StepSpec) -> NewStep | Replayed:
    """Begin a step: returns it if it must be executed, or its recorded result.

    Raises:
        FlowChanged: another step is recorded here, or this one with other arguments.
        OutcomeUnknown: an external effect that began before and cannot be reconciled.
        WrongLoop: it is awaited on another event loop than the run's.
        And the step's own error, if that is recorded.
    """
    run = context.run
    require_run_loop(run.loop, f"{spec.name}()")
    is_new_task, context = enter_task(context, spec.name, spec.arguments)
    step_path = context.step_path.enter(spec.name)
    past = run.recorded_steps.find(step_path, spec.kind, spec.arguments)
    if past is not None and past.status in (Status.COMPLETED, Status.FAILED):
        try:
            return await _replay(run, spec, past)
        finally:
            for budget in context.budgets:
                budget.count(run.recorded_steps.calls_of(past.path))
    # This step may depend on what the flow has read of an answer, so that is recorded first.
    await until_ended(run.left - {asyncio.current_task()})
    new_step = NewStep(
        context.derive(step_path=step_path, owner=current_worker()),
        StepRecord(
            run_id=run.id,
            path=step_path.text,
            name=spec.name,
            started_s=run.since_start_s(),
            kind=spec.kind,
            place=step_path.place,
            effects=spec.effects,
            arguments=spec.arguments,
            outcome_number=None if past is None else past.outcome_number,
            workspace=spec.workspace,
            state_before=spec.state_before,
        ),
        began_before=past is not None,
    )
    try:
        if past is not None and past.status is Status.CANCELLED and context.remaining_s() <= 0:
            await _replay_before_error(run, spec, past)  # it is cut off again, before inner steps
            run.recorder.order.drop_unbegun(lambda path: path.startswith(f"{past.path}/"))
            _replay_actions(run, past)
        await require_time(context)
    except asyncio.CancelledError:
        run.replayed_calls_ended(step_path.text)
        raise
    if spec.effects is not Effects.EXTERNAL:
        return new_step
    if past is None and is_new_task:
        run.recorded_steps.require_new_effect(step_path, spec.name)
    uncertain = run.uncertain_effects.take(new_step.record)
    if uncertain is None and past is not None:
        uncertain = uncertain_effect_of(past)
    if uncertain is None:
        return new_step
    attempt = 0 if past is None else past.attempts
    return await _reconcile(new_step, spec, uncertain, attempt=attempt)


async def _replay(run: LiveRun, spec: StepSpec, step: StepRecord) -> Replayed:
    """The recorded outcome of a step, when all that came before it have reached the flow."""
    order = run.recorder.order
    try:
        if step.outcome_number is None:  # a question, answered while no process executed the run
            step = await run.recorder.answer_received(step)
        result = await run.recorder.data.result_of(step)
        await order.turn(step.path)
    finally:
        order.drop(step.path)
    run.replayed_calls_ended(step.path)
    _replay_actions(run, step)
    if step.status is Status.FAILED:
        if spec.before_error is not None:
            spec.before_error(step, result)
        error = decode_error(step.path, step, result)
        mark_step(error, run.id, step.path)
        raise error
    return Replayed(spec.codec.load(b"null" if result is None else result), step)


def _replay_actions(run: LiveRun, step: StepRecord) -> None:
    """Tell the workspaces what a step that is not executed again did to them."""
    for action in run.recorded_steps.actions_of(step.path):
        if (replayed := run.workspaces.get(action.workspace or "")) is not None:
            replayed(action)


async def _replay_before_error(run: LiveRun, spec: StepSpec, step: StepRecord) -> None:
    if spec.before_error is not None:
        with run.recorder.order.replaying():
            spec.before_error(step, await run.recorder.data.result_of(step))


async def require_time(context: CallContext) -> None:
    """Make sure that something may begin here.

    Raises:
        CancelledError: the deadline has passed, a budget was exceeded or the run was cancelled;
            the code here may have caught the cancellation for that.
    """
    if context.run.was_cancelled():
        raise asyncio.CancelledError
    if exceeded := [budget for budget in context.budgets if budget.is_exceeded]:
        await refuse(*exceeded)
    if context.run.recorder.order.is_interrupted(asyncio.current_task()):
        await let_the_deadline_pass()
    if context.remaining_s() <= 0:
        await let_the_deadline_pass()  # usually that raises
        raise asyncio.CancelledError


async def refuse(*spent: Budget) -> NoReturn:
    """Do not begin something because budgets are spent: their blocks end."""
    for budget in spent:
        budget.exceed()
    await let_the_deadline_pass()  # usually that raises
    raise asyncio.CancelledError


def enter_task(
    context: CallContext, name: str, arguments: bytes | None
) -> tuple[bool, CallContext]:
    """The context of a step; in a task that the runtime did not start, one of the task's own.

    Such tasks begin their steps in any order, so a task is identified by its first step.

    Returns:
        Whether this is the first step of such a task, and the context.
    """
    if not _is_new_task(context):
        return False, context
    task_path = context.step_path.task_branch(_first_step(name, arguments))
    context = context.derive(step_path=task_path, owner=current_worker())
    set_context(context)
    return True, context


def recorded_next(context: CallContext, name: str, arguments: bytes | None) -> StepRecord | None:
    """The record of the step of this name that would begin now; None if there is none."""
    path = context.step_path
    if _is_new_task(context):
        path = path.next_task_branch(_first_step(name, arguments))
    return context.run.recorded_steps.at(path.next_text(name))


def _is_new_task(context: CallContext) -> bool:
    """Whether no step has begun yet in this task, which the runtime did not start."""
    task = current_worker()
    is_new = isinstance(context.owner, asyncio.Task) and task is not context.owner
    return is_new and isinstance(task, asyncio.Task)


def _first_step(name: str, arguments: bytes | None) -> str:
    """The mark of a task by the first step in it."""
    return (digest_of(name, (arguments or b"").hex()) or b"").hex()[:8]


async def run_step(
    context: CallContext,
    spec: StepSpec,
    work: Callable[[CallContext], Awaitable[R]],
    *,
    is_whole: bool = True,
) -> R:
    """Execute a step that is not a call itself, or return its recorded result.

    Args:
        work: called with the context of the code within the step.
        is_whole: whether the step has begun all its inner steps once `work` returns; then a
            further recorded inner step means that the flow changed. If not, `work` checks that.
    Raises:
        ResultNotSerialisable: its result cannot be recorded.
        And as `begin_or_replay`, and what the work raises.
    """
    step = await begin_or_replay(context, spec)
    if isinstance(step, Replayed):
        value: R = step.value
        return value
    run, record = context.run, step.record
    if spec.cache is not None:
        record = replace(record, reuse_key=spec.cache.key)
        cached: tuple[R] | None = None
        if not step.began_before:
            cached = await cached_result(run, record, spec.codec, spec.cache)
        if cached is not None:
            return cached[0]
        step = step._replace(context=step.context.derive(cached_step=spec.name))
    async with recorded_step(step._replace(record=record)) as outcome:
        value = await work(step.context)
        if is_whole:
            run.recorded_steps.require_no_more(step.context.step_path)
        outcome["result"], value = spec.codec.round_trip(value)
    return value


@asynccontextmanager
async def recorded_step(step: NewStep) -> AsyncIterator[dict[str, Any]]:
    """Record a step's start, and its end with what the block puts into the yielded dict.

    The dict's items are keyword arguments of `RunRecorder.step_ended`.
    """
    run, record = step.context.run, step.record
    await run.recorder.step_started(record, began_before=step.began_before)
    outcome: dict[str, Any] = {}
    error: BaseException | None = None
    try:
        run.emit(StepStarted(run.id, record.path, record.name, run.since_start_s()))
        yield outcome
        run.recorded_steps.step_succeeded(step.context.step_path)
    except BaseException as caught:
        error = caught
        outcome["result"] = encode_error(caught)
        mark_step(caught, run.id, record.path)
        raise
    finally:
        await run.recorder.step_ended(record, error, **outcome)
        run.emit(
            StepFinished(
                run.id,
                record.path,
                str(status_of(error)),
                run.since_start_s(),
                error_type=type_of(error),
            )
        )


async def _reconcile(
    new_step: NewStep, spec: StepSpec, uncertain: UncertainEffect, *, attempt: int
) -> NewStep | Replayed:
    """Find out whether an external effect took place that did not complete successfully.

    Without `reconcile`, an effect is repeated if the tool raised an error: that is its outcome.

    Args:
        attempt: how often the step was begun before; steps within `reconcile` are recorded
            separately for each attempt.
    Raises:
        OutcomeUnknown: the outcome is unknown, and there is no `reconcile`.
    """
    run, step_path = new_step.context.run, new_step.context.step_path
    try:
        answer = None
        if spec.reconcile is not None:
            reconcile_path = step_path.isolated(f"reconcile{attempt}")
            with using_context(new_step.context.derive(step_path=reconcile_path)):
                answer = await spec.reconcile()
        elif not uncertain.has_failed:
            raise OutcomeUnknown(run.id, uncertain.path)
        if answer is None:
            return new_step
        if not isinstance(answer, Happened):
            raise TypeError(
                f"reconcile= of {spec.name} must return Happened(result) or None, not {answer!r}"
            )
        result, value = spec.codec.round_trip(answer.result)
        await run.recorder.step_started(new_step.record, began_before=new_step.began_before)
        change = None
        if new_step.record.workspace is not None:
            change = StateChange(state_after=new_step.record.state_before)
        await run.recorder.step_ended(new_step.record, None, result=result, environment=change)
    except BaseException:
        run.uncertain_effects.add(new_step.record, uncertain)
        raise
    run.recorded_steps.step_succeeded(step_path)
    return Replayed(value, reconciled=new_step.record)

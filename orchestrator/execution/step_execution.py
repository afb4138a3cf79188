"""A step is done once: what is recorded of it comes back, and is not done again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from orchestrator.cancellation import let_the_deadline_pass
from orchestrator.durability.digests import digest_of
from orchestrator.durability.error_codec import decode_error, encode_error, mark_step
from orchestrator.durability.identity import GATHER
from orchestrator.durability.outcomes import status_of, type_of
from orchestrator.durability.uncertain_effects import UncertainEffect, uncertain_effect_of
from orchestrator.durability.values import ValueCodec
from orchestrator.errors import OutcomeUnknown
from orchestrator.events import StepFinished, StepStarted
from orchestrator.execution.context import CallContext, current_worker, set_context, using_context
from orchestrator.execution.step_cache import CacheLookup, cached_result
from orchestrator.execution.threads import require_run_loop
from store.records import Effects, Status, StepKind, StepRecord

R = TypeVar("R")

_COUNT = ValueCodec("a number of branches", int)

Reconcile = Callable[..., Awaitable[Any]]
"""Finds out about an external effect that may have happened: called with the tool's arguments,
returns `Happened(result)`, or None if it did not and is to be done now."""


class Happened(NamedTuple):
    """An external effect did take place, with this result."""

    result: Any


@dataclass(frozen=True, slots=True)
class StepSpec:
    """What there is to know of a step before it begins.

    Attributes:
        codec: of its result.
        reconcile: as Reconcile, its arguments given already.
        reuse: whose results do as well; None: nobody's.
        arguments: a digest of what it is called with; None: it is not known by that.
    """

    name: str
    kind: StepKind
    codec: ValueCodec
    effects: Effects = Effects.PURE
    reconcile: Callable[[], Awaitable[Any]] | None = None
    reuse: CacheLookup | None = None
    arguments: bytes | None = None


class NewStep(NamedTuple):
    """A step that is to be done now.

    Attributes:
        position: within it.
        step: its record.
        again: whether it began before, and nobody knows its end.
    """

    context: CallContext
    step: StepRecord
    again: bool


class Replayed(NamedTuple):
    """A step whose outcome is known, without doing it.

    Attributes:
        step: its record, where that is where the outcome is from.
    """

    value: Any
    step: StepRecord | None = None


async def begin_or_replay(context: CallContext, spec: StepSpec) -> NewStep | Replayed:
    """Come to a step: it is to be done, or its outcome is known.

    Raises:
        FlowChanged: another step is recorded here, or this one with other arguments.
        OutcomeUnknown: it is an external effect that began before, and cannot be reconciled.
        WrongLoop: it is awaited on another event loop than the run's.
        And what it raised before, if that is recorded.
    """
    run = context.run
    require_run_loop(run.loop, f"{spec.name}()")
    is_new_task, context = _in_own_scope(context, spec.name, spec.arguments)
    step_path = context.step_path.enter(spec.name)
    past = run.recorded_steps.of(step_path, spec.kind, spec.arguments)
    if past is not None and past.status in (Status.COMPLETED, Status.FAILED):
        recorded = await run.recorder.result_of(past)
        run.replayed_calls_ended(step_path.text)
        if past.status is Status.FAILED:
            error = decode_error(step_path.text, past, recorded)
            mark_step(error, run.id, step_path.text)
            raise error
        return Replayed(spec.codec.load(b"null" if recorded is None else recorded), past)
    begin = NewStep(
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
        ),
        again=past is not None,
    )
    is_effect = spec.effects is Effects.EXTERNAL
    if (begin.again or is_effect) and context.remaining_s() <= 0:
        await let_the_deadline_pass()  # what it cuts off is unknown: nothing is begun for that
    if not is_effect:
        return begin
    if past is None and is_new_task:
        run.recorded_steps.require_no_other(step_path, spec.name)
    unsure = run.uncertain_effects.claim(begin.step)
    if unsure is None and past is not None:
        unsure = uncertain_effect_of(past)
    if unsure is None:
        return begin
    return await _reconciled(begin, spec, unsure, attempt=0 if past is None else past.attempts)


def _in_own_scope(
    context: CallContext, name: str, arguments: bytes | None
) -> tuple[bool, CallContext]:
    """Where a step begins: in a task that the runtime did not begin, in a scope of that task's own.

    Such tasks begin their steps in any order, so that this one is known by what it does first.

    Returns:
        Whether this is the first that it does, and the position.
    """
    task = current_worker()
    is_new = isinstance(context.owner, asyncio.Task) and task is not context.owner
    if not is_new or not isinstance(task, asyncio.Task):
        return False, context
    first = digest_of(name, (arguments or b"").hex()) or b""
    context = context.derive(step_path=context.step_path.of_task(first.hex()[:8]), owner=task)
    set_context(context)
    return True, context


async def run_step(
    context: CallContext,
    spec: StepSpec,
    work: Callable[[CallContext], Awaitable[R]],
    *,
    is_whole: bool = True,
) -> R:
    """Do a step that makes no call of its own, or return what is recorded of it.

    Args:
        is_whole: whether work that returns has come by all its steps; else it looks by itself.
    Raises:
        ResultNotSerialisable: its result cannot be recorded.
        And as `begin_or_replay`, and what the work raises.
    """
    came = await begin_or_replay(context, spec)
    if isinstance(came, Replayed):
        value: R = came.value
        return value
    run, step = context.run, came.step
    if spec.reuse is not None:
        step = replace(step, reuse_key=spec.reuse.key)
        found: tuple[R] | None = None
        if not came.again:
            found = await cached_result(run, step, spec.codec, spec.reuse)
        if found is not None:
            return found[0]
    await run.recorder.step_started(step, again=came.again)
    error: BaseException | None = None
    result: bytes | None = None
    try:
        run.emit(StepStarted(run.id, step.path, spec.name, run.since_start_s()))
        value = await work(came.context)
        if is_whole:
            run.recorded_steps.ended(came.context.step_path)
        result, value = spec.codec.kept(value)
        run.recorded_steps.succeeded(came.context.step_path)
    except BaseException as caught:
        error = caught
        result = encode_error(caught)
        mark_step(caught, run.id, step.path)
        raise
    finally:
        await run.recorder.step_ended(step.path, error, result=result)
        run.emit(
            StepFinished(
                run.id,
                step.path,
                str(status_of(error)),
                run.since_start_s(),
                error_type=type_of(error),
            )
        )
    return value


def record_value(context: CallContext, name: str, codec: ValueCodec, make: Callable[[], R]) -> R:
    """A value that another execution would not get, the same in every execution of a run."""
    run = context.run
    _, context = _in_own_scope(context, name, None)
    step_path = context.step_path.enter(name)
    past = run.recorded_steps.of(step_path, StepKind.VALUE)
    if past is not None and past.result is not None:
        value: R = codec.load(past.result)
        return value
    result, value = codec.kept(make())
    now_s = run.since_start_s()
    run.recorder.note(
        StepRecord(
            run_id=run.id,
            path=step_path.text,
            name=name,
            started_s=now_s,
            kind=StepKind.VALUE,
            place=step_path.place,
            status=Status.COMPLETED,
            finished_s=now_s,
            result=result,
        )
    )
    return value


def begin_gather(context: CallContext, count: int) -> CallContext:
    """Come to a gather of so many branches; returns from where they begin.

    Raises:
        FlowChanged: something else is recorded here, as a gather of another number.
    """
    name = f"{GATHER}{count}"
    _, context = _in_own_scope(context, name, None)
    record_value(context, name, _COUNT, lambda: count)
    return context


async def _reconciled(
    begin: NewStep, spec: StepSpec, unsure: UncertainEffect, *, attempt: int
) -> NewStep | Replayed:
    """What became of an external effect that did not end well.

    Without anybody who finds out, one that failed has said so itself, and is done again.

    Args:
        attempt: how often this step was begun so far: what is found out is found out each time.
    Raises:
        OutcomeUnknown: nobody knows, and nobody finds out.
    """
    run, step_path = begin.context.run, begin.context.step_path
    try:
        found = None
        if spec.reconcile is not None:
            with using_context(
                begin.context.derive(step_path=step_path.apart(f"reconcile{attempt}"))
            ):
                found = await spec.reconcile()
        elif not unsure.has_failed:
            raise OutcomeUnknown(run.id, unsure.path)
        if found is None:
            return begin
        if not isinstance(found, Happened):
            raise TypeError(
                f"reconcile= of {spec.name} returns Happened(result) or None, not {found!r}"
            )
        result, value = spec.codec.kept(found.result)
        await run.recorder.step_started(begin.step, again=begin.again)
        await run.recorder.step_ended(begin.step.path, None, result=result)
    except BaseException:
        run.uncertain_effects.add(begin.step, unsure)
        raise
    run.recorded_steps.succeeded(step_path)
    return Replayed(value)

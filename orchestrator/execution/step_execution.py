"""A step is done once: what is recorded of it comes back, and is not done again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from orchestrator.cancellation import let_the_deadline_pass
from orchestrator.durability.digests import digest_of
from orchestrator.durability.error_codec import failure_of, raised_again, remember
from orchestrator.durability.identity import GATHER
from orchestrator.durability.outcomes import status_of, type_of
from orchestrator.durability.uncertain_effects import Unsure, unsure_of
from orchestrator.durability.values import ValueCodec
from orchestrator.errors import OutcomeUnknown
from orchestrator.events import StepFinished, StepStarted
from orchestrator.execution.context import Position, at, moved, stay_at, worker
from orchestrator.execution.step_cache import Reuse, found_elsewhere
from orchestrator.execution.threads import require_own_loop
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
    reuse: Reuse | None = None
    arguments: bytes | None = None


class Begin(NamedTuple):
    """A step that is to be done now.

    Attributes:
        position: within it.
        step: its record.
        again: whether it began before, and nobody knows its end.
    """

    position: Position
    step: StepRecord
    again: bool


class Known(NamedTuple):
    """A step whose outcome is known, without doing it.

    Attributes:
        step: its record, where that is where the outcome is from.
    """

    value: Any
    step: StepRecord | None = None


async def entered(position: Position, spec: StepSpec) -> Begin | Known:
    """Come to a step: it is to be done, or its outcome is known.

    Raises:
        FlowChanged: another step is recorded here, or this one with other arguments.
        OutcomeUnknown: it is an external effect that began before, and cannot be reconciled.
        WrongLoop: it is awaited on another event loop than the run's.
        And what it raised before, if that is recorded.
    """
    run = position.run
    require_own_loop(run.loop, f"{spec.name}()")
    is_new_task, position = _in_own_scope(position, spec.name, spec.arguments)
    scope = position.scope.enter(spec.name)
    past = run.past.of(scope, spec.kind, spec.arguments)
    if past is not None and past.status in (Status.COMPLETED, Status.FAILED):
        recorded = await run.recorder.result_of(past)
        run.past_calls_ended(scope.path)
        if past.status is Status.FAILED:
            error = raised_again(scope.path, past, recorded)
            remember(error, run.id, scope.path)
            raise error
        return Known(spec.codec.load(b"null" if recorded is None else recorded), past)
    begin = Begin(
        moved(position, scope=scope, owner=worker()),
        StepRecord(
            run_id=run.id,
            path=scope.path,
            name=spec.name,
            started_s=run.since_start_s(),
            kind=spec.kind,
            place=scope.place,
            effects=spec.effects,
            arguments=spec.arguments,
        ),
        again=past is not None,
    )
    is_effect = spec.effects is Effects.EXTERNAL
    if (begin.again or is_effect) and position.remaining_s() <= 0:
        await let_the_deadline_pass()  # what it cuts off is unknown: nothing is begun for that
    if not is_effect:
        return begin
    if past is None and is_new_task:
        run.past.require_no_other(scope, spec.name)
    unsure = run.unsure.claim(begin.step)
    if unsure is None and past is not None:
        unsure = unsure_of(past)
    if unsure is None:
        return begin
    return await _reconciled(begin, spec, unsure, attempt=0 if past is None else past.attempts)


def _in_own_scope(position: Position, name: str, arguments: bytes | None) -> tuple[bool, Position]:
    """Where a step begins: in a task that the runtime did not begin, in a scope of that task's own.

    Such tasks begin their steps in any order, so that this one is known by what it does first.

    Returns:
        Whether this is the first that it does, and the position.
    """
    task = worker()
    is_new = isinstance(position.owner, asyncio.Task) and task is not position.owner
    if not is_new or not isinstance(task, asyncio.Task):
        return False, position
    first = digest_of(name, (arguments or b"").hex()) or b""
    position = moved(position, scope=position.scope.of_task(first.hex()[:8]), owner=task)
    stay_at(position)
    return True, position


async def done(
    position: Position,
    spec: StepSpec,
    work: Callable[[Position], Awaitable[R]],
    *,
    is_whole: bool = True,
) -> R:
    """Do a step that makes no call of its own, or return what is recorded of it.

    Args:
        is_whole: whether work that returns has come by all its steps; else it looks by itself.
    Raises:
        ResultNotSerialisable: its result cannot be recorded.
        And as `entered`, and what the work raises.
    """
    came = await entered(position, spec)
    if isinstance(came, Known):
        value: R = came.value
        return value
    run, step = position.run, came.step
    if spec.reuse is not None:
        step = replace(step, reuse_key=spec.reuse.key)
        found: tuple[R] | None = None
        if not came.again:
            found = await found_elsewhere(run, step, spec.codec, spec.reuse)
        if found is not None:
            return found[0]
    await run.recorder.step_started(step, again=came.again)
    error: BaseException | None = None
    result: bytes | None = None
    try:
        run.emit(StepStarted(run.id, step.path, spec.name, run.since_start_s()))
        value = await work(came.position)
        if is_whole:
            run.past.ended(came.position.scope)
        result, value = spec.codec.kept(value)
        run.past.succeeded(came.position.scope)
    except BaseException as caught:
        error = caught
        result = failure_of(caught)
        remember(caught, run.id, step.path)
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


def noted(position: Position, name: str, codec: ValueCodec, make: Callable[[], R]) -> R:
    """A value that another execution would not get, the same in every execution of a run."""
    run = position.run
    _, position = _in_own_scope(position, name, None)
    scope = position.scope.enter(name)
    past = run.past.of(scope, StepKind.VALUE)
    if past is not None and past.result is not None:
        value: R = codec.load(past.result)
        return value
    result, value = codec.kept(make())
    now_s = run.since_start_s()
    run.recorder.note(
        StepRecord(
            run_id=run.id,
            path=scope.path,
            name=name,
            started_s=now_s,
            kind=StepKind.VALUE,
            place=scope.place,
            status=Status.COMPLETED,
            finished_s=now_s,
            result=result,
        )
    )
    return value


def gathering(position: Position, count: int) -> Position:
    """Come to a gather of so many branches; returns from where they begin.

    Raises:
        FlowChanged: something else is recorded here, as a gather of another number.
    """
    name = f"{GATHER}{count}"
    _, position = _in_own_scope(position, name, None)
    noted(position, name, _COUNT, lambda: count)
    return position


async def _reconciled(
    begin: Begin, spec: StepSpec, unsure: Unsure, *, attempt: int
) -> Begin | Known:
    """What became of an external effect that did not end well.

    Without anybody who finds out, one that failed has said so itself, and is done again.

    Args:
        attempt: how often this step was begun so far: what is found out is found out each time.
    Raises:
        OutcomeUnknown: nobody knows, and nobody finds out.
    """
    run, scope = begin.position.run, begin.position.scope
    try:
        found = None
        if spec.reconcile is not None:
            with at(moved(begin.position, scope=scope.apart(f"reconcile{attempt}"))):
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
        run.unsure.add(begin.step, unsure)
        raise
    run.past.succeeded(scope)
    return Known(value)

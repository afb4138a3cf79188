"""A step is done once: what is recorded of it comes back, and is not done again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from orchestrator.context import Position, moved
from orchestrator.errors import OutcomeUnknown
from orchestrator.events import StepFinished, StepStarted
from orchestrator.failing import failure_of, raised_again
from orchestrator.outcomes import status_of, type_of
from orchestrator.reuse import Reuse, found_elsewhere
from orchestrator.values import ValueCodec
from store.records import Effects, Status, StepKind, StepRecord

R = TypeVar("R")

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
    """

    name: str
    kind: StepKind
    codec: ValueCodec
    effects: Effects = Effects.PURE
    reconcile: Callable[[], Awaitable[Any]] | None = None
    reuse: Reuse | None = None


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
        FlowChanged: another step is recorded here.
        OutcomeUnknown: it is an external effect that began before, and cannot be reconciled.
        And what it raised before, if that is recorded.
    """
    run = position.run
    scope = position.scope.enter(spec.name)
    past = run.past.of(scope, spec.kind)
    if run.past.forgotten:
        run.recorder.forget(run.past.forgotten)
        run.past.forgotten = []
    if past is not None and past.status in (Status.COMPLETED, Status.FAILED):
        recorded = await run.recorder.result_of(past)
        run.past_calls_ended(scope.path)
        if past.status is Status.FAILED:
            raise raised_again(scope.path, past, recorded)
        return Known(spec.codec.load(b"null" if recorded is None else recorded), past)
    begin = Begin(
        moved(position, scope=scope),
        StepRecord(
            run_id=run.id,
            path=scope.path,
            name=spec.name,
            started_s=run.since_start_s(),
            kind=spec.kind,
            place=scope.place,
            effects=spec.effects,
        ),
        again=past is not None,
    )
    if past is not None and past.effects is Effects.EXTERNAL:
        return await _reconciled(begin, spec)
    return begin


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
        result = spec.codec.dump(value)
    except BaseException as caught:
        error = caught
        result = failure_of(caught)
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
    scope = position.scope.enter(name)
    past = run.past.of(scope, StepKind.VALUE)
    if past is not None and past.result is not None:
        value: R = codec.load(past.result)
        return value
    value = make()
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
            result=codec.dump(value),
        )
    )
    return value


async def _reconciled(begin: Begin, spec: StepSpec) -> Begin | Known:
    """What became of an external effect whose end is not recorded."""
    run, path = begin.position.run, begin.step.path
    if spec.reconcile is None:
        raise OutcomeUnknown(run.id, path)
    found = await spec.reconcile()
    if found is None:
        return begin
    if not isinstance(found, Happened):
        raise TypeError(
            f"reconcile= of {spec.name} returns Happened(result) or None, not {found!r}"
        )
    await run.recorder.step_started(begin.step, again=True)
    await run.recorder.step_ended(path, None, result=spec.codec.dump(found.result))
    return Known(found.result)

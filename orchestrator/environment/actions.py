"""An action of a workspace: a step that takes it from a state to a state."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

from orchestrator.environment.history import Compensate, Moment, Repeat
from orchestrator.environment.position import Position
from orchestrator.environment.state_changes import changed_between, state_record
from orchestrator.execution.call_recording import begin_call, recorded_call
from orchestrator.execution.context import CallContext, using_context
from orchestrator.execution.step_execution import (
    NewStep,
    Replayed,
    StepSpec,
    begin_or_replay,
    recorded_step,
)
from store.records import Effects, StepKind
from store.state_records import (
    CheckpointRecord,
    EdgeKind,
    Revertibility,
    StateChange,
    StateEdgeRecord,
)

logger = logging.getLogger("orchestrate")

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Action:
    """An action before it begins.

    Attributes:
        kind: what its edge in the state graph is.
        repeat: does it again, if the state that it left is lost; None: it cannot be.
        compensate: of an effect on the outside world: takes it back.
        reads: the paths that it declares to read; None: it declares none.
        beside: states of other workspaces that went into it: edges from them are recorded too.
        is_observed: whether it may change the workspace; else that is neither mounted nor read.
        checkpoint: the name of the checkpoint that it makes; None: it makes none.
        keeps: the state of that checkpoint, given the result; None: the state that it leaves.
        leaves: the state that it leaves, given the result; None: the one that is shown then.
        note: what else its edge says, given the result.
    """

    spec: StepSpec
    kind: EdgeKind = EdgeKind.ACTION
    repeat: Repeat | None = None
    compensate: Compensate | None = None
    reads: Sequence[str] | None = None
    beside: Sequence[str] = ()
    is_observed: bool = True
    checkpoint: str | None = None
    keeps: Callable[[Any], str] | None = None
    leaves: Callable[[Any], str] | None = None
    note: Callable[[Any], str] | None = None

    @property
    def is_exclusive(self) -> bool:
        """Whether no other action of the workspace may be in progress."""
        return self.is_observed or self.leaves is not None

    @property
    def label(self) -> str | None:
        """The name of the checkpoint, if that is the state that it leaves."""
        return self.checkpoint if self.keeps is None else None


async def run_action(
    context: CallContext | None,
    position: Position,
    action: Action,
    work: Callable[[], Awaitable[R]],
) -> R:
    """Do an action as a recorded step, or return its recorded result.

    If it fails or is cut off, the workspace is brought back to the state before it.

    Args:
        context: None outside of a run: nothing is recorded.
    Raises:
        WorkspaceBusy: another action of the workspace is in progress.
        StateLost: the state before it is not stored any more, and cannot be computed again.
        And as `begin_or_replay`, and what the work raises.
    """
    spec = replace(action.spec, workspace=position.name, state_before=position.state)
    # What only happens beside the workspace may do so at the same time as an action in it.
    acting = position.acting(spec.name) if action.is_exclusive else nullcontext()
    if context is None:
        with acting:
            async with _Transaction(position, action, path=os.urandom(8).hex()) as transaction:
                value = await work()
                await transaction.commit(value)
            return value
    if context.cached_step:
        raise TypeError(
            f"step {context.cached_step} is cached, and works in workspace {position.name}: what it"
            " changes there would be missing in a run that reuses its result; remove cache="
        )
    step = await begin_or_replay(context, spec)
    if isinstance(step, Replayed):
        _remember_replayed(position, action, step)
        replayed: R = step.value
        return replayed
    with acting:
        before = position.state
        record = replace(step.record, state_before=before)
        step = step._replace(record=record)
        transaction = _Transaction(position, action, path=record.path)
        async with _recorded(step) as outcome, transaction:
            outcome["environment"] = StateChange(state_after=before)
            with using_context(step.context):
                value = await work()
            outcome["result"], value = spec.codec.round_trip(value)
            after = await transaction.commit(value)
            if not action.is_exclusive:
                before = after  # another action may have ended meanwhile
            outcome["environment"] = _change(step, position, action, value, before, after)
        return value


class _Transaction:
    """Mounts a workspace for an action, and brings back the state before it if that fails."""

    def __init__(self, position: Position, action: Action, *, path: str) -> None:
        self._position = position
        self._action = action
        self._path = path
        self._before = self._after = position.state

    async def __aenter__(self) -> Self:
        if self._action.is_observed:
            await self._position.mount()
        return self

    async def commit(self, value: Any) -> str:
        """Store the state that the action has left; once the block ends it is the workspace's.

        Args:
            value: the action's result.
        Returns:
            Its id.
        """
        action, state = self._action, self._before
        if not action.is_observed:
            state = self._position.state
        if action.leaves is not None:
            state = action.leaves(value)
        elif action.is_observed:
            state = (await self._position.mounting.capture()).id
        self._after = state
        return state

    async def __aexit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        action = self._action
        if action.is_exclusive:
            self._position.take_noted()
        if error is not None and action.is_observed:
            await until_done(self._position.mounting.roll_back(self._before))
        if error is None and action.kind is EdgeKind.REWIND:
            return
        if error is None or self._may_have_happened(error):
            moment = Moment(
                self._path,
                action.spec.name,
                self._after,
                action.spec.effects,
                label=action.label,
                repeat=action.repeat,
                compensate=action.compensate,
            )
            self._position.history.add(moment)

    def _may_have_happened(self, error: BaseException) -> bool:
        """Whether the action is an effect outside that was cut off; a tool's error says it was not.

        An apply writes all of it or nothing, and the next one tells which.
        """
        is_outside = self._action.spec.effects is Effects.EXTERNAL and self._action.leaves is None
        return is_outside and not isinstance(error, Exception)


async def until_done(work: Awaitable[R]) -> R:
    """Wait for work to its end, also if this task is cancelled meanwhile, which is then raised."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled is not None:
        raise cancelled
    return task.result()


def _remember_replayed(position: Position, action: Action, step: Replayed) -> None:
    spec = action.spec
    if step.reconciled is not None:
        position.history.add(
            Moment(
                step.reconciled.path,
                spec.name,
                position.state,
                spec.effects,
                label=action.label,
                compensate=action.compensate,
            )
        )
    elif step.record is not None and step.record.workspace is not None:
        position.history.describe(
            step.record.path,
            label=action.label,
            repeat=action.repeat,
            compensate=action.compensate,
        )


def _recorded(step: NewStep) -> AbstractAsyncContextManager[dict[str, Any]]:
    """A tool is a call in the run's graph, all else a step."""
    if step.record.kind is StepKind.TOOL:
        return recorded_call(step, begin_call(step, "tool", step.record.name))
    return recorded_step(step)


def _change(
    step: NewStep, position: Position, action: Action, value: Any, before: str, after: str
) -> StateChange:
    """What is recorded of an action beside its outcome, given its result."""
    run, record, home = step.context.run, step.record, position.mounting.home
    kept = after if action.keeps is None else action.keeps(value)
    changed = changed_between(home, before, after)
    note = None if action.note is None else action.note(value)
    if record.effects is Effects.PURE and before != after:
        note = f"{record.name} is declared as pure, and changed files or the shell"
        logger.warning("%s: %s: %s", record.path, note, ", ".join(changed.paths[:10]))
    is_external = record.effects is Effects.EXTERNAL
    edge = StateEdgeRecord(
        run.id,
        record.path,
        0,
        action.kind,
        before,
        after,
        attribute=Revertibility.EXTERNAL if is_external else Revertibility.REVERTIBLE,
        seconds=run.since_start_s() - record.started_s,
        changed=changed.paths if run.recorder.data.is_durable else (),
        num_changed=changed.num_changed,
        num_added=changed.num_added,
        num_removed=changed.num_removed,
        num_bytes=changed.num_bytes,
        reads=action.reads,
        note=note,
    )
    beside = [
        StateEdgeRecord(run.id, record.path, number, action.kind, state, after)
        for number, state in enumerate(action.beside, start=1)
    ]
    checkpoint, new = None, sorted({after, kept} - {before})
    if action.checkpoint is not None:
        at_s = run.since_start_s()
        checkpoint = CheckpointRecord(
            run.id, record.path, action.checkpoint, position.name, kept, at_s
        )
    return StateChange(
        state_after=after,
        states=[state_record(home.states, each, run.clock.wall()) for each in new],
        edges=[edge, *beside],
        checkpoint=checkpoint,
    )

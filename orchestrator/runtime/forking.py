"""Forks a run: a new run that begins with another one's history up to a step, and goes on.

The original is read and the fork written in one transaction: there is a complete fork, or none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.durability.arguments import Arguments, ArgumentsNotRecorded
from orchestrator.errors import EffectsAfterFork, RunNotForkable, RunNotResumable
from orchestrator.execution.flow_spec import FlowSpec
from orchestrator.runtime.fork_history import (
    ForkHistory,
    RunHistory,
    find_fork_point,
    history_up_to,
)
from orchestrator.runtime.recovery import InterruptedRun, load_interrupted
from store.errors import RunNotFound
from store.records import FORKED_FROM

if TYPE_CHECKING:
    from orchestrator.durability.journal_writer import Work
    from store.session import Store
    from store.unit_of_work import Transaction

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class ForkPlan:
    """A run, and the step at which it is to be forked.

    Attributes:
        origin: the run as it was read.
        history: what the fork would begin with, if it began now.
        allow_effects: external effects after the step may happen a second time.
    """

    origin: InterruptedRun
    history: ForkHistory
    allow_effects: bool

    @property
    def age_s(self) -> float:
        """Seconds of the run until the step's outcome: the fork's clock begins there."""
        return self.history.age_s

    @property
    def attributes(self) -> dict[str, object]:
        """What the fork's record says about its origin; as RunRecord.forked_from."""
        origin = {
            "run": self.origin.record.id,
            "at": self.history.at.path,
            "outcome_number": self.history.outcome_number,
        }
        return {FORKED_FROM: origin}

    def flow(self, given: FlowSpec[..., R] | None, *, may_import: bool) -> FlowSpec[..., R]:
        """The flow of the fork: the given one, or the one that the run's record names.

        Raises:
            RunNotForkable: the given one is another flow, or the code cannot, or may not, be
                imported.
        """
        record = self.origin.record
        if given is None:
            try:
                return self.origin.flow(may_import=may_import)
            except RunNotResumable as error:
                raise RunNotForkable(*error.args) from error
        if given.name != record.flow:
            raise RunNotForkable(record.id, f"it is a run of {record.flow}, not of {given.name}")
        return given

    def arguments(self, flow: FlowSpec[..., Any], replaced: Mapping[str, Any]) -> Arguments:
        """The run's arguments with some replaced.

        Raises:
            RunNotForkable: some were not recorded and are not given.
            TypeError: the flow has no such parameter.
            ResultUnreadable: the flow's parameters, or their types, have changed.
        """
        record, recorded = self.origin.record, self.origin.input
        if recorded is None:
            reason = "its arguments were not recorded (it was not durable, or had none that fit)"
            raise RunNotForkable(record.id, reason)
        try:
            return Arguments.load(flow.body, recorded, replaced=replaced)
        except ArgumentsNotRecorded as error:
            names = ", ".join(error.args[0])
            reason = f"not recorded of its arguments: {names}; give them in arguments="
            raise RunNotForkable(record.id, reason) from error

    def writing(self, fork_id: str) -> Work:
        """Writes the fork's history in the transaction that records the fork's start.

        The run is read again there: its process may have recorded more, or may have executed the
        step again.
        """
        run_id, planned = self.origin.record.id, self.history

        async def write(tx: Transaction) -> None:
            await tx.runs.get(run_id)
            history = _checked_history(
                run_id,
                await _read(tx, run_id),
                planned.at.path,
                fork_id=fork_id,
                allow_effects=self.allow_effects,
            )
            if (history.outcome_number, history.age_s) != (planned.outcome_number, planned.age_s):
                reason = f"its step {planned.at.path} was just executed again: try again"
                raise RunNotForkable(run_id, reason)
            kept = history.kept
            await tx.journal.add_all(kept.steps)
            await tx.calls.add_all(kept.calls, kept.edges)
            await tx.calls.interrupt(fork_id)
            await tx.stages.add_all(kept.stages)
            await tx.states.add_edges(kept.state_edges)
            for checkpoint in kept.checkpoints:
                await tx.states.add_checkpoint(checkpoint)

        return write


async def plan_fork(store: Store, run_id: str, at: str, *, allow_effects: bool) -> ForkPlan:
    """Read a run, and find the step at which it is to be forked.

    Raises:
        RunNotFound: there is no such run.
        NoForkPoint, EffectsAfterFork: as they say.
    """
    origin = await load_interrupted(store, run_id)
    if origin is None:
        raise RunNotFound(run_id)
    async with store.reading() as tx:
        checkpoints = await tx.states.checkpoints_of_run(run_id)
    run = RunHistory(origin.steps, origin.calls, origin.edges, (), (), checkpoints)
    history = _checked_history(run_id, run, at, fork_id="", allow_effects=allow_effects)
    return ForkPlan(origin, history, allow_effects)


def _checked_history(
    run_id: str, run: RunHistory, at: str, *, fork_id: str, allow_effects: bool
) -> ForkHistory:
    history = history_up_to(
        find_fork_point(run_id, run.steps, at, run.checkpoints), run, fork_id=fork_id
    )
    if history.lost_effects and not allow_effects:
        raise EffectsAfterFork(run_id, history.at.path, history.lost_effects)
    return history


async def _read(tx: Transaction, run_id: str) -> RunHistory:
    """What is recorded of a run.

    Steps come first: PostgreSQL may show what is committed meanwhile to the next statement, and a
    step's outcome is committed with its calls'.
    """
    return RunHistory(
        await tx.journal.of_run(run_id),
        await tx.calls.of_run(run_id),
        await tx.calls.edges_of_run(run_id),
        await tx.stages.of_run(run_id),
        await tx.states.edges_of_run(run_id),
        await tx.states.checkpoints_of_run(run_id),
    )

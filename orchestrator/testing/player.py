"""Plays schedules one after another, and judges each."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.testing.faults import Event, Faults
from orchestrator.testing.scenario import Scenario
from orchestrator.testing.simulated_database import Database, simulated_database
from orchestrator.testing.simulated_loop import SimulatedLoop
from orchestrator.testing.simulation import RUN_ID, Choose, NeverEnds, Simulation
from orchestrator.testing.verdict import (
    Undisturbed,
    counted,
    is_replayed_refusal,
    wrong_effects,
    wrong_ends,
    wrong_last_end,
)
from store.records import Status, StepRecord

R = TypeVar("R")

MAX_RESUMES = 3
"""Undisturbed resumes within which a run must end; an error that a refusal left takes one more."""


@dataclass(frozen=True, slots=True)
class Played:
    """One schedule that was tried.

    Attributes:
        schedule: its choices, which reproduce it.
        lines: what happened.
        violations: what must not have happened.
        faults: the injected faults by kind.
    """

    schedule: tuple[int, ...]
    lines: Sequence[str]
    violations: Sequence[str]
    faults: Counter[str]

    def __str__(self) -> str:
        found = [f"WRONG: {each}" for each in self.violations] or ["nothing is wrong"]
        return "\n".join([*self.lines, *found])


class Player:
    """Plays schedules one after another in one database, which it empties before each."""

    def __init__(self, scenario: Scenario, database: Database) -> None:
        self._scenario = scenario
        self._database = database
        self._undisturbed: Undisturbed | None = None
        self._known: dict[object, tuple[int, ...]] = {}

    async def once(self, faults: Faults, choose: Choose, *, is_all: bool = False) -> Played:
        """Play one schedule, then resume the run undisturbed until it has ended.

        Args:
            is_all: whether all schedules are played: what follows from a state of the store and
                the world is then played only for the choices that first led to it.
        """
        if self._undisturbed is None:
            self._undisturbed = await self._without_faults()
        taken: list[int] = []

        def noted(events: Sequence[Event]) -> int:
            taken.append(choose(events))
            return taken[-1]

        def knows(left: Faults) -> bool:
            return is_all and self._knows(left, taken)

        simulation = self._simulation(faults, noted, knows=knows)
        try:
            violations = await self._violations(simulation, self._undisturbed)
        except NeverEnds as error:
            violations = [f"the run never ends: {error}"]
        violations += simulation.monitor.violations
        return Played(tuple(taken), simulation.lines, violations, simulation.faults)

    async def _violations(self, simulation: Simulation, undisturbed: Undisturbed) -> list[str]:
        await simulation.run()
        value, monitor = undisturbed.value, simulation.monitor
        disturbed, claims, steps = [*simulation.processes], [*monitor.claims], await self._steps()
        monitor.compare_journal(steps)
        found = list(wrong_ends(disturbed, claims, self._may_be_unknown(steps), value))
        if simulation.is_known:
            return found
        for _ in range(MAX_RESUMES):
            last = await simulation.resume_undisturbed()
            if not is_replayed_refusal(last.error):
                break
        steps = await self._steps()
        monitor.compare_journal(steps)
        found += wrong_last_end(simulation.processes, self._may_be_unknown(steps), value)
        took_place = counted(self._scenario.effects())
        is_complete = simulation.processes[-1].error is None
        if is_complete and not _had_refusals(simulation):
            found += await self._calls_left_running()
        return found + list(wrong_effects(took_place, undisturbed.effects, is_complete=is_complete))

    def _may_be_unknown(self, steps: Sequence[StepRecord]) -> Sequence[StepRecord]:
        """The steps of which the run may say that their outcome is unknown."""
        return () if self._scenario.is_reconciled else steps

    async def _without_faults(self) -> Undisturbed:
        simulation = self._simulation(Faults(resumers=()), lambda _: 0, knows=_nothing_known)
        await simulation.run()
        [process] = simulation.processes
        if process.error is not None:
            raise process.error
        return Undisturbed(process.value, counted(self._scenario.effects()))

    async def _calls_left_running(self) -> list[str]:
        """Calls of the complete run that are recorded as running: their processes are gone."""
        async with self._database.store.reading() as tx:
            calls = await tx.calls.of_run(RUN_ID)
        return [
            f"the run is complete, but call {call.node} is recorded as running"
            for call in calls
            if call.status is Status.RUNNING
        ]

    def _knows(self, left: Faults, taken: Sequence[int]) -> bool:
        """Whether other choices led to what is stored now, and the same faults are left."""
        took_place = frozenset(counted(self._scenario.effects()).items())
        state = (left, took_place, self._database.contents())
        return self._known.setdefault(state, tuple(taken)) != tuple(taken)

    def _simulation(
        self, faults: Faults, choose: Choose, *, knows: Callable[[Faults], bool]
    ) -> Simulation:
        self._database.empty()
        self._scenario.reset()
        return Simulation(self._scenario, self._database.store, faults, choose, knows=knows)

    async def _steps(self) -> Sequence[StepRecord]:
        async with self._database.store.reading() as tx:
            return await tx.journal.of_run(RUN_ID)


def _had_refusals(simulation: Simulation) -> bool:
    """Whether a commit failed: then the end of a call may be missing for good."""
    return any(simulation.faults[kind] for kind in ("locked", "unreachable", "untold"))


def _nothing_known(_: Faults) -> bool:
    return False


def with_player(scenario: Scenario, work: Callable[[Player], Awaitable[R]]) -> R:
    """What `work` returns, called with a player on an event loop of its own."""

    async def play() -> R:
        async with simulated_database() as database:
            return await work(Player(scenario, database))

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(play())

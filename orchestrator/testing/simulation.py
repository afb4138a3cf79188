"""One schedule: simulated processes run and resume one run on an unreliable store.

The runtime, the recorder and the recovery are the production code; only the store, the time and the
moment at which each commit lands are simulated.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from orchestrator.runtime.runtime import Runtime
from orchestrator.testing.faults import Event, Faults, Kind, Situation, budget_left, possible
from orchestrator.testing.invariants import Monitor
from orchestrator.testing.scenario import Scenario
from orchestrator.testing.schedule_text import described
from orchestrator.testing.simulated_loop import LoopClock, SimulatedLoop
from orchestrator.testing.simulated_process import Process, current_process, tracked_task
from orchestrator.testing.unreliable_store import (
    LEASE,
    Commit,
    Fate,
    UnreliableStore,
    is_simulated,
)
from store.session import Store

RUN_ID = "the-run"

MAX_DECISIONS = 3000
MAX_WAITS = 1000
"""A schedule with more decisions, or more waits for a timer one after another, has no end."""

MAX_TURNS, TURNS_PER_CANCEL = 400, 20
"""Turns of the loop within which a dead process' tasks end; cancelled each turn, some could not."""

FATES = {
    Kind.LAND: Fate.LANDED,
    Kind.TORN: Fate.LAST,
    Kind.LATE: Fate.LATE,
    Kind.LOCKED: Fate.LOCKED,
    Kind.UNREACHABLE: Fate.UNREACHABLE,
    Kind.UNTOLD: Fate.UNTOLD,
}

Choose = Callable[[Sequence[Event]], int]
"""Chooses the index of one of several events."""


class NeverEnds(Exception):
    """A simulated process waits for something that does not come, or goes on for ever."""


class Simulation:
    """The processes of one schedule, and the decisions about their commits.

    Attributes:
        lines: what happened, to be read.
        faults: the injected faults by kind.
        processes: all that were started, in order.
        is_known: whether it was left, as `knows` knows what follows.

    Args:
        knows: asked when no process is left, with the faults that may follow: whether all that
            follows from here was tried before.
    """

    def __init__(
        self,
        scenario: Scenario,
        store: Store,
        faults: Faults,
        choose: Choose,
        *,
        knows: Callable[[Faults], bool] = lambda _: False,
    ) -> None:
        self.is_known = False
        self._knows = knows
        self.lines: list[str] = []
        self.faults = Counter[str]()
        self.processes: list[Process] = []
        self.monitor = Monitor()
        self._scenario = scenario
        self._store = store
        self._budget = faults
        self._waves = list(faults.resumers)
        self._choose = choose
        self._commits: list[Commit] = []
        self._in_flight: list[Commit] = []
        self._current = 0
        self._num_decisions = self._num_waits = 0
        self._is_over = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Follow the schedule until all processes have ended; raises NeverEnds."""
        self._waves.insert(0, 1)
        await self._until_ended()

    async def resume_undisturbed(self) -> Process:
        """One more process, without faults; returns it once it has ended."""
        self._budget, self._waves = Faults(), [1]
        self._knows = lambda _: False
        self._ended = asyncio.get_running_loop().create_future()
        self.lines.append("undisturbed from here on")
        await self._until_ended()
        return self.processes[-1]

    async def _until_ended(self) -> None:
        loop = cast("SimulatedLoop", asyncio.get_running_loop())
        loop.set_task_factory(tracked_task)
        self._is_over = False
        loop.ask_when_idle(self._when_idle)
        try:
            await self._ended
        finally:
            loop.ask_when_idle(lambda _: False)
            await self._bury()

    def _start(self, num_processes: int) -> None:
        rivals = num_processes if self.monitor.can_be_resumed else 0
        for _ in range(num_processes):
            process = Process(len(self.processes) + 1, rivals)
            self.processes.append(process)
            context = contextvars.copy_context()
            context.run(current_process.set, process)
            loop = asyncio.get_running_loop()
            process.task = loop.create_task(self._execute(process), context=context)
        self._current = self.processes[-1].number if num_processes == 1 else 0

    async def _execute(self, process: Process) -> None:
        store = UnreliableStore(
            self._store, process.number, arrive=self._arrive, ended=self._commit_ended
        )
        runtime = Runtime(
            self._scenario.engine(),
            cast("Store", store),
            clock=LoopClock(),
            on_event=[lambda event: self.monitor.began(process.number, event)],
        )
        flow = cast("Any", self._scenario.flow).options(run_id=RUN_ID)
        try:
            result = await runtime.run(flow, *self._scenario.args, **self._scenario.kwargs)
            process.value = self._scenario.compared(result.value)
            self.lines.append(f"process {process.number} returns the result")
        except BaseException as error:
            process.error = error
            if not process.is_dead:
                self.lines.append(f"process {process.number} ends: {type(error).__name__}: {error}")

    def _arrive(self, branch: str) -> Commit:
        process = current_process.get()
        assert process is not None, "every task of a simulation belongs to a process"
        fate: asyncio.Future[Fate] = asyncio.get_running_loop().create_future()
        commit = Commit(process.number, branch, len(self._commits), fate)
        self._commits.append(commit)
        if process.is_dead or self._is_over:
            fate.set_result(Fate.LOST)
        return commit

    def _commit_ended(self, commit: Commit, fate: Fate, error: BaseException | None) -> None:
        process = self.processes[commit.process - 1]
        has_landed = fate.lands and (error is None or is_simulated(error))
        if has_landed:
            self.monitor.landed(commit.process, commit.operations)
        if commit.branch != LEASE and fate is not Fate.LOST:
            is_unexpected = error is not None and not is_simulated(error)
            outcome = f"refused, {type(error).__name__}" if is_unexpected else fate
            self.lines.append(f"{described(commit)} -> {outcome}")
        if fate is Fate.LAST and not process.is_dead:
            self._kill(process)

    def _kill(self, process: Process) -> None:
        process.is_dead = True
        current = asyncio.current_task()
        in_flight = {commit.fate for commit in self._in_flight}
        for commit in self._commits:
            if commit.process == process.number and commit.fate not in in_flight:
                commit.decide(Fate.LOST)
        for task in process.tasks:
            if task is not current and not task.done() and not self._carries(task):
                task.cancel()

    def _carries(self, task: asyncio.Task[Any]) -> bool:
        """Whether a task waits for the fate of a commit in flight."""
        return any(commit.task is task for commit in self._in_flight)

    async def _bury(self) -> None:
        """End what is left of dead processes, and of live ones if the schedule was given up."""
        self._is_over = True
        for commit in self._commits:
            commit.decide(Fate.LOST)
        for turn in range(MAX_TURNS):
            left = [t for process in self.processes for t in process.tasks if not t.done()]
            if not left:
                return
            for task in left if turn % TURNS_PER_CANCEL == 0 else ():
                task.cancel()
            await asyncio.sleep(0)
        raise NeverEnds(f"tasks of dead processes go on: {left}")

    def _when_idle(self, timer_s: float | None) -> bool:
        """Decide what happens next; False: nothing can happen before the next timer."""
        try:
            return self._decide(timer_s)
        except Exception as error:
            if not self._ended.done():
                self._ended.set_exception(error)
            return True

    def _decide(self, timer_s: float | None) -> bool:
        if self._ended.done():
            return False
        pending = self._pending()
        if (renewal := self._renewal(pending)) is not None:
            return renewal.decide(Fate.LANDED)
        if not any(process.is_live for process in self.processes):
            return self._next_wave()
        situation = Situation(
            pending,
            self._in_flight,
            self._current,
            can_resume=bool(self._waves),
            is_waiting=timer_s is not None,
        )
        events = possible(situation, self._budget)
        if not events:
            return self._wait(timer_s)
        self._num_waits = 0
        self._num_decisions += 1
        if self._num_decisions > MAX_DECISIONS:
            raise NeverEnds(f"it makes more than {MAX_DECISIONS} commits")
        event = events[self._choose(events) if len(events) > 1 else 0]
        self._budget = budget_left(event, situation, self._budget)
        return self._apply(event, pending, timer_s)

    def _apply(
        self, event: Event, pending: Mapping[int, Sequence[Commit]], timer_s: float | None
    ) -> bool:
        if event.kind is Kind.WAIT:
            return self._wait(timer_s)
        if event.kind is not Kind.LAND:
            self.faults[event.kind.name.lower()] += 1
        elif event.commit is not min(pending[event.process], key=lambda each: each.number):
            self.faults["out_of_order"] += 1
        if event.kind is Kind.STALLED:
            self.lines.append(str(event))
            self._start(self._waves.pop(0))
        elif event.kind in (Kind.LOST, Kind.IN_FLIGHT):
            self.lines.append(str(event))
            self._in_flight = [*self._in_flight, *([event.commit] if event.commit else [])]
            self._kill(self.processes[event.process - 1])
        else:
            assert event.commit is not None
            self._in_flight = [each for each in self._in_flight if each is not event.commit]
            if event.kind is not Kind.LATE:
                self._current = event.process
            event.commit.decide(FATES[event.kind])
        return True

    def _pending(self) -> dict[int, list[Commit]]:
        waiting: dict[int, list[Commit]] = {
            process.number: [] for process in self.processes if process.is_live
        }
        for commit in self._commits:
            if not commit.fate.done() and commit.process in waiting:
                waiting[commit.process].append(commit)
        for commits in waiting.values():
            commits.sort(key=lambda each: (each.branch, each.number))
        return waiting

    def _renewal(self, pending: Mapping[int, Sequence[Commit]]) -> Commit | None:
        if self._budget.leases:
            return None
        all_pending = [commit for commits in pending.values() for commit in commits]
        return next((each for each in all_pending if each.branch == LEASE), None)

    def _next_wave(self) -> bool:
        left = replace(self._budget, resumers=tuple(self._waves))
        is_start = not self.processes or bool(self._in_flight)
        if self._waves and not is_start and self._knows(left):
            self.is_known = True
        elif self._waves:
            self._start(self._waves.pop(0))
            return True
        elif self._in_flight:
            commit, *self._in_flight = self._in_flight
            return commit.decide(Fate.LATE)
        self._ended.set_result(None)
        return True

    def _wait(self, timer_s: float | None) -> bool:
        self._num_waits += 1
        if timer_s is None or self._num_waits > MAX_WAITS:
            raise NeverEnds("it waits for something that does not come")
        return False

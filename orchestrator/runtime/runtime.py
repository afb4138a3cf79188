"""Executes runs on its engines and one store, any number of them concurrently."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from orchestrator.clock import Clock, RunClock
from orchestrator.durability.arguments import Arguments
from orchestrator.durability.identity import is_in_wrap_up
from orchestrator.durability.leases import LEASE_S, Leases
from orchestrator.durability.liveness import executing_run
from orchestrator.durations import Duration, seconds_of
from orchestrator.errors import RunCancelled, RunNotResumable, RuntimeDraining
from orchestrator.events import Listener
from orchestrator.execution.causality import own_task
from orchestrator.execution.context import (
    EnvironmentsPlace,
    LiveRun,
    TraceHeaders,
    current_context_or_none,
    no_trace_headers,
)
from orchestrator.execution.engines import Engines
from orchestrator.execution.flow_spec import FlowSpec
from orchestrator.learning.feasibility import check_feasible
from orchestrator.runtime.code_versions import code_version_of
from orchestrator.runtime.draining import ExecutedRun, interrupt
from orchestrator.runtime.event_delivery import EventDelivery
from orchestrator.runtime.forking import plan_fork
from orchestrator.runtime.handle import RunHandle
from orchestrator.runtime.new_runs import new_live_run, new_run_record, warn_of_other_engines
from orchestrator.runtime.recovery import InterruptedRun, load_interrupted
from orchestrator.runtime.results import RunResult
from orchestrator.runtime.run_control import RunControl, RunInfo, newest_runs
from orchestrator.runtime.run_execution import execute_run
from orchestrator.runtime.schedules import put_schedule
from orchestrator.runtime.submission import Submitted, submit_run
from orchestrator.runtime.task_tracker import TaskTracker
from serving.generation import Engine
from serving.references import is_loaded
from store.errors import RunChanged, RunExists, RunNotFound
from store.records import RunRecord

if TYPE_CHECKING:
    from orchestrator.learning.knowledge import Learner
    from store.session import Store

P = ParamSpec("P")
R = TypeVar("R")


class Runtime(RunControl):
    """Runs flows on its engines, recorded in one store. Made by `open_runtime`.

    `runs`, `get`, `answer` and `cancel` concern all runs of the store, also of other processes.

    Args:
        engine: the default one, for calls that name none.
        engines: others by name, for `llm(engine=)`.
        learner: the knowledge from past runs; by default read from the store, without fits.
        durable: record arguments and results, so that an interrupted run can be resumed.
        record_text: record prompts and answers as well.
        user: the user of runs, unless their flows name one.
        lease_s: seconds after which another machine takes over the run of a silent process.
        code_version: of the flows; None: of each one a digest of its file.
        environments: where the states of workspaces are; None: where the settings say.
        on_event: called with every event of every run, for display. A listener that raises is
            logged and not called again; the runs continue.
        trace_headers: gives the headers of requests to servers, for their spans.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        *,
        engines: Mapping[str, Engine] | None = None,
        learner: Learner | None = None,
        clock: Clock | None = None,
        durable: bool = True,
        record_text: bool = False,
        user: str = "",
        lease_s: float = LEASE_S,
        code_version: str | None = None,
        environments: EnvironmentsPlace | None = None,
        on_event: Sequence[Listener] = (),
        trace_headers: TraceHeaders = no_trace_headers,
    ) -> None:
        super().__init__(store, clock)
        self.engine = engine
        self.engines = Engines(engine, engines)
        if learner is None:
            from orchestrator.learning.knowledge import Learner  # NumPy takes time to import

            learner = Learner(store, models=None)
        self.environments = environments
        self._learner = learner
        self.lease_s = lease_s
        self.code_version = code_version
        self._leases = Leases(store, self._clock, lease_s=lease_s)
        self._user = user
        self._delivery = EventDelivery(on_event)
        self._tasks = TaskTracker()
        self._durable = durable
        self._live = partial(
            new_live_run,
            engines=self.engines,
            store=store,
            emit=self._delivery.emit,
            durable=durable,
            record_text=record_text,
            user=user,
            environments=environments,
            trace_headers=trace_headers,
        )
        self._executed: set[ExecutedRun] = set()
        self._is_draining = False

    async def run(self, flow: FlowSpec[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RunResult[R]:
        """Execute a flow as a run of its own.

        If the flow has the id of a recorded run, that run is resumed, or, if it is completed, its
        result is returned.

        Raises:
            DeadlineExceeded: the flow's deadline passed first; the completed steps are recorded.
            DeadlineInfeasible: the deadline is shorter than every past run, and the flow has
                infeasible="fail".
            StoreError: the run could not be recorded.
            ArgumentsDiffer: the run with this id was started with other arguments.
            RunNotResumable: the run with this id cannot be resumed, or is of another flow.
            RunCancelled: `cancel` cancelled the run, here or in another process.
            RunInterrupted, RuntimeDraining: `drain` interrupted it, or was called before.
            And what the flow's body raises.
        """
        arguments = Arguments(args, kwargs)
        former = None if flow.run_id is None else await load_interrupted(self.store, flow.run_id)
        if former is not None:
            former.require_same(flow, arguments)
            if former.is_completed:
                return former.result(flow)
            return await self._resume(flow, former, former.arguments(flow, arguments))
        await self.engines.start()
        knowledge = await self._learner.knowledge_of(flow.name)
        check_feasible(flow.name, flow.deadline_s, knowledge.library, flow.infeasible)
        live = self._live(flow, RunClock(self._clock), knowledge)
        record = self._new_record(live, flow)
        self._delivery.keep_log(live, record)

        dumped = arguments.dump_partly(flow.body) if self._durable else None
        if dumped is not None:  # use the arguments as a resumed run would read them
            arguments = Arguments.load(flow.body, dumped, given=arguments)
        begin = partial(live.recorder.run_started, record, arguments=dumped)
        try:
            return await self._execute(live, flow, arguments, record, begin)
        except RunExists as error:
            if error.args != (flow.run_id,):
                raise
        # A run with this id was started after the check above: now it is found and compared.
        return await self.run(flow, *args, **kwargs)

    async def submit(self, flow: FlowSpec[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Submitted:
        """Submit a run to the queue that `flow.queued()` names; a `Worker` executes it.

        Its deadline counts from now. Nothing of it is executed here, and no engine is started.

        Raises:
            DeadlineInfeasible: the deadline is shorter than every past run, and the flow has
                infeasible="fail".
            QueueDraining: the queue takes no runs now.
            RunExists: there is a run with the flow's run_id.
            ResultNotSerialisable: an argument cannot be recorded.
            InvalidSettings: the runtime is not durable.
            TypeError: the arguments do not fit the flow's parameters.
            StoreError: the run could not be recorded.
        """
        knowledge = await self._learner.knowledge_of(flow.name)
        return await submit_run(
            self.store,
            flow,
            Arguments(args, kwargs),
            knowledge.library,
            user=self._user,
            code_version=code_version_of(flow, self.code_version),
            is_durable=self._durable,
            wall=self._clock.wall(),
        )

    async def schedule(
        self,
        flow: FlowSpec[..., Any],
        name: str,
        cron: str,
        *,
        timezone: str = "UTC",
        arguments: Mapping[str, Any] | None = None,
    ) -> datetime:
        """Submit a flow again and again, as `flow.queued()` says; a worker that has it does so.

        While the last run of a schedule waits or is in progress, no other one is submitted. Times
        that pass without a worker count as one.

        Args:
            name: of the schedule; another one of this name is replaced.
            cron: minute, hour, day of the month, month and day of the week: "30 2 * * mon-fri".
            timezone: in which that is meant, such as "Europe/Berlin".
            arguments: those of the flow, by name.
        Returns:
            The first time.
        Raises:
            InvalidCron, InvalidQueueOption, ResultNotSerialisable, TypeError: as they say.
        """
        schedule = await put_schedule(
            self.store,
            flow,
            Arguments((), arguments or {}),
            name=name,
            cron=cron,
            timezone=timezone,
            user=self._user,
            wall=self._clock.wall(),
        )
        return schedule.next_at

    async def execute_claimed(self, record: RunRecord, flow: FlowSpec[..., R]) -> RunResult[R]:
        """Execute a run that this process has claimed from its queue; `Worker` calls it.

        Args:
            record: as the claim returned it.
        Raises:
            And what `resume` raises.
        """
        former = await load_interrupted(self.store, record.id)
        if former is None:
            raise RunNotFound(record.id)
        arguments = former.arguments(flow)
        knowledge = await self._learner.knowledge_of(flow.name)
        assert record.claimed_at is not None, "a claim says when it was"
        # By the clock by which it was submitted: other machines' clocks may differ.
        age_s = former.age_s(record.claimed_at)
        stopped_s = max((record.claimed_at - record.started_at).total_seconds() - age_s, 0.0)
        flow = replace(flow, run_id=record.id, deadline_s=record.deadline_s, user=record.slo_user)
        clock = RunClock(self._clock, stopped_s=stopped_s)
        live = self._live(flow, clock, knowledge, age_s=age_s)
        live.recorder.retries = record.retry_s is not None
        self._delivery.keep_log(live, record)

        async def begin() -> None:
            if record.attempts > 1:
                async with self.store.transaction() as tx:
                    await tx.calls.interrupt(record.id)
                await self._restore(live, replays_wrap_up=True)

        return await self._execute(live, flow, arguments, record, begin)

    def start(self, flow: FlowSpec[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Start a run in the background, as `run`; returns its handle."""
        return self.begin(flow, args, kwargs)

    def begin(
        self,
        flow: FlowSpec[..., R],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        release: Callable[[], Awaitable[None]] | None = None,
    ) -> RunHandle[R]:
        """The same as `start`; `release` is awaited once the run has ended."""
        run_id = flow.run_id or secrets.token_hex(6)

        async def work() -> RunResult[R]:
            try:
                return await self.run(replace(flow, run_id=run_id), *args, **kwargs)
            finally:
                if release is not None:
                    await release()

        return self._in_background(run_id, work)

    def _in_background(
        self, run_id: str, work: Callable[[], Coroutine[Any, Any, RunResult[R]]]
    ) -> RunHandle[R]:
        task = asyncio.ensure_future(work())
        self._tasks.add(task)
        handle = RunHandle(run_id, task)
        self._delivery.add(handle, task)
        return handle

    async def end_runs(self) -> None:
        """End all runs and record their ends; called between closing the engine and the store."""
        await self._tasks.end()

    async def drain(self, timeout: Duration | None = None) -> list[str]:
        """Begin no more runs, wait for those in progress, and interrupt those that are left.

        For a service that shuts down. Nothing more is recorded of a run that is interrupted, as if
        this process had died, so that `resume_orphans` of any process continues it from its last
        recorded outcome. Awaiting it here raises RunInterrupted.

        Args:
            timeout: how long to wait for runs in progress ("20s", or seconds; 0: not at all); None:
                to their ends.
        Returns:
            The ids of the runs that were interrupted.
        Raises:
            StoreError: they are interrupted, but their leases could not be ended: a process in
                another container can resume them after LEASE_S only.
        """
        allowed_s = _allowed_s(timeout)
        self._is_draining = True
        return await self._wait_or_interrupt(lambda: tuple(self._executed), allowed_s)

    async def hand_over(
        self, run_ids: Collection[str], timeout: Duration | None = None
    ) -> list[str]:
        """As `drain`, for these runs alone: the runtime goes on with others, and begins more."""

        def executed() -> tuple[ExecutedRun, ...]:
            return tuple(run for run in self._executed if run.record.id in run_ids)

        return await self._wait_or_interrupt(executed, _allowed_s(timeout))

    async def _wait_or_interrupt(
        self, executed: Callable[[], tuple[ExecutedRun, ...]], allowed_s: float | None
    ) -> list[str]:
        """Wait for runs, and interrupt those that are left.

        Args:
            executed: those that are in progress: a run may begin others, and wait for them.
        """
        begun_s = self._clock.now_s()
        while left := executed():
            left_s = None if allowed_s is None else begun_s + allowed_s - self._clock.now_s()
            if left_s is not None and left_s <= 0:
                break
            await asyncio.wait([run.task for run in left], timeout=left_s)
        interrupted: list[str] = []
        while left := executed():
            interrupted += await interrupt(left, self.store, self._clock)
        return interrupted

    async def resume_orphans(self, *flows: FlowSpec[..., Any]) -> list[RunHandle[Any]]:
        """Resume in the background the runs that have lost their processes, oldest first.

        Runs of queues are left to their workers.

        Args:
            flows: only runs of these; by default of all flows whose code is imported.
        Returns:
            Their handles. Where several processes resume at the same time, one of them gets a run,
            and for the others awaiting its handle raises RunNotResumable.
        """
        by_name = {flow.name: flow for flow in flows}
        handles = []
        for record, _ in reversed(await newest_runs(self.store, status="orphaned")):
            if record.queue is not None:  # a worker takes it
                continue
            known = record.flow in by_name or (not flows and is_loaded(record.entry or ""))
            if known and record.cancel_requested_at is None:
                work = partial(self.resume, record.id, by_name.get(record.flow))
                handles.append(self._in_background(record.id, work))
        return handles

    async def resume(
        self,
        run_id: str,
        flow: FlowSpec[..., R] | None = None,
        *,
        deadline: Duration | None = None,
        allow_changed: bool = False,
        may_import: bool = False,
    ) -> RunResult[R]:
        """Resume a run that was interrupted or failed; steps with a recorded outcome are replayed.

        Args:
            flow: its flow; by default the one that its record names, if its code is imported.
            deadline: a new one, counted from now ("60s", or seconds), which is recorded; by default
                the run keeps its own, which counts from its first start. Limits within the run,
                such as of `within` and of flows that it awaits, stay as they are.
            allow_changed: if the flow's code now begins other steps than are recorded, discard
                the records from there on, instead of raising FlowChanged.
            may_import: import the code that its record names. Whoever can write the store chooses
                that code.
        Raises:
            RunNotFound: there is no such run.
            RunNotResumable: another process executes it, its arguments were not recorded, or its
                flow cannot be, or may not be, imported.
            FlowChanged: the flow's code begins other steps than are recorded.
            InvalidDuration: the deadline is not a positive time.
            OutcomeUnknown: it is unknown whether an external effect took place.
            And what `run` raises.
        """
        allowed_s = None if deadline is None else seconds_of(deadline)
        former = await load_interrupted(self.store, run_id)
        if former is None:
            raise RunNotFound(run_id)
        flow = former.flow(may_import=may_import) if flow is None else flow
        if former.is_completed:
            return former.result(flow)
        arguments = former.arguments(flow)
        return await self._resume(
            flow, former, arguments, allowed_s=allowed_s, allow_changed=allow_changed
        )

    async def _resume(
        self,
        flow: FlowSpec[..., R],
        former: InterruptedRun,
        arguments: Arguments,
        *,
        allowed_s: float | None = None,
        allow_changed: bool = False,
    ) -> RunResult[R]:
        """Resume a run.

        Args:
            allowed_s: a new deadline, from now; None: the run keeps its own.
        """
        before = former.record
        former.require_orphaned()
        await self.engines.start()
        warn_of_other_engines(before, self.engines)
        knowledge = (await self._learner.knowledge_of(flow.name)).without_runs(before.id)
        now = self._clock.wall()
        age_s = former.age_s(now)
        stopped_s = max((now - before.started_at).total_seconds() - age_s, 0.0)
        deadline_s = before.deadline_s if allowed_s is None else age_s + allowed_s
        flow = replace(flow, run_id=before.id, deadline_s=deadline_s, user=before.slo_user)
        clock = RunClock(self._clock, stopped_s=stopped_s)
        live = self._live(flow, clock, knowledge, age_s=age_s)
        record = replace(self._new_record(live, flow), attempts=before.attempts + 1)
        self._delivery.keep_log(live, replace(record, started_at=before.started_at))

        async def begin() -> None:
            try:
                await live.recorder.run_resumed(before, record)
            except RunChanged as error:
                reason = "another process has resumed or ended it meanwhile"
                raise RunNotResumable(before.id, reason) from error
            # Only now: before, the process that executed it could have recorded more.
            await self._restore(
                live, allow_changed=allow_changed, replays_wrap_up=allowed_s is None
            )

        return await self._execute(live, flow, arguments, record, begin)

    async def fork(
        self,
        run_id: str,
        flow: FlowSpec[..., R] | None = None,
        *,
        at: str,
        new_id: str | None = None,
        arguments: Mapping[str, Any] | None = None,
        deadline: Duration | None = None,
        allow_effects: bool = False,
        may_import: bool = False,
    ) -> RunResult[R]:
        """Execute a new run that has another one's outcomes up to a step's, and goes on from there.

        All recorded outcomes up to that of the step, in the order in which they reached the flow,
        are replayed, whatever the arguments of their steps are now; what comes after is executed.
        In parallel branches, what was in progress when the outcome came begins anew. The other run
        stays as it is, and may be in progress. If the step's error ended it, the step is tried
        again.

        Args:
            flow: its flow; by default the one that its record names, if its code is imported.
            at: the step's path, as `orchestrate logs` shows it, or the beginning or the end of it
                that no other step has.
            new_id: of the new run; by default a random one.
            arguments: values of some of the flow's parameters, instead of the recorded ones.
            deadline: counted from now ("60s", or seconds). By default the new run has the other
                one's, of which it has used what that one had used when the outcome came.
            allow_effects: fork it although it had external effects after the step, which may
                happen a second time.
            may_import: as for `resume`.
        Raises:
            RunNotFound, RunExists: there is no such run; there is one with the new id.
            RunNotForkable: its arguments were not recorded, or its flow cannot be imported.
            NoForkPoint: there is no such step, or several, or it has no outcome.
            EffectsAfterFork: it had external effects after the step.
            InvalidRunId, InvalidDuration: as they say.
            TypeError: the flow has no such parameter.
            FlowChanged: the flow begins other steps, up to this one, than are recorded.
            And what `run` raises.
        """
        allowed_s = None if deadline is None else seconds_of(deadline)
        plan = await plan_fork(self.store, run_id, at, allow_effects=allow_effects)
        flow = plan.flow(flow, may_import=may_import)
        given = plan.arguments(flow, arguments or {})
        dumped = given.dump_partly(flow.body) if self._durable else None
        if dumped is not None:  # use the arguments as a resumed run would read them
            given = Arguments.load(flow.body, dumped, given=given)
        origin = plan.origin.record
        new_id = secrets.token_hex(6) if new_id is None else new_id
        flow = replace(
            flow.options(run_id=new_id, tags={**origin.tags, **flow.tags}),
            user=origin.slo_user if flow.user is None else flow.user,
            deadline_s=origin.deadline_s if allowed_s is None else plan.age_s + allowed_s,
        )
        await self.engines.start()
        knowledge = await self._learner.knowledge_of(flow.name)
        live = self._live(flow, RunClock(self._clock), knowledge, age_s=plan.age_s)
        record = self._new_record(live, flow)
        record = replace(
            record,
            started_at=record.started_at - timedelta(seconds=plan.age_s),
            attributes={**record.attributes, **plan.attributes},
        )
        self._delivery.keep_log(live, record)

        async def begin() -> None:
            history = plan.writing(live.id)
            await live.recorder.run_started(record, arguments=dumped, history=history)
            await self._restore(live, replays_wrap_up=allowed_s is None)

        return await self._execute(live, flow, given, record, begin)

    def _new_record(self, live: LiveRun, flow: FlowSpec[..., Any]) -> RunRecord:
        """The record of a run that begins now."""
        return new_run_record(live, flow, durable=self._durable, lease_s=self.lease_s)

    async def _restore(
        self, live: LiveRun, *, allow_changed: bool = False, replays_wrap_up: bool
    ) -> None:
        """Give a live run what is recorded of it.

        Args:
            replays_wrap_up: it is cut off again where it was before; not so with a new deadline.
        """
        recorded = await load_interrupted(self.store, live.id)
        assert recorded is not None, "it has just been recorded"
        recorded.restore(live, allow_changed=allow_changed)
        if not replays_wrap_up:
            live.recorder.order.drop_unbegun(is_in_wrap_up)

    async def _execute(
        self,
        live: LiveRun,
        flow: FlowSpec[..., R],
        arguments: Arguments,
        record: RunRecord,
        begin: Callable[[], Awaitable[None]],
    ) -> RunResult[R]:
        """Record that a run begins, execute it, and learn from it."""

        writer, handle = live.recorder.writer, self._delivery.handle_here()

        async def execute() -> RunResult[R]:
            own_task()
            with executing_run(live.id):
                await begin()
                if handle is not None:
                    self._delivery.begun(live, handle)
                async with self._leases.held(record) as writer.lease:
                    try:
                        return await execute_run(live, flow, arguments)
                    finally:
                        if not writer.is_interrupted:
                            at = self._clock.wall()
                            await self._learner.run_ended(live.flow, used=live.pattern_uses, at=at)

        caller = asyncio.current_task()
        assert caller is not None
        num_cancellations = caller.cancelling()

        def caller_was_cancelled() -> bool:
            return caller.cancelling() > num_cancellations

        live.was_cancelled = lambda: caller_was_cancelled() or writer.is_cancelled
        if self._is_draining and current_context_or_none() is None:  # else a run begins it
            raise RuntimeDraining(f"run {live.id}")
        # In a task of its own, so that the run's context variables do not leak into the caller's.
        executing = asyncio.create_task(execute())
        self._tasks.add(executing)
        executed = ExecutedRun(record, writer, executing)
        self._executed.add(executed)
        executing.add_done_callback(lambda _: self._executed.discard(executed))
        try:
            return await executing
        except asyncio.CancelledError:
            if writer.is_cancelled and not caller_was_cancelled():
                raise RunCancelled(live.id) from None
            raise

    async def cancel(self, run_id: str) -> RunInfo:
        """The same as RunControl.cancel; also of a run of `start` that is just beginning."""
        if (handle := self._delivery.beginning(run_id)) is not None:
            with suppress(Exception):  # if it cannot begin, there is nothing to cancel
                await handle.begun()
        return await super().cancel(run_id)

    async def _cancel_own_runs(self) -> None:
        await self._leases.cancel_requested()


def _allowed_s(timeout: Duration | None) -> float | None:
    """The seconds of a timeout, which may be 0; None: any time. Raises InvalidDuration."""
    if timeout is None:
        return None
    return 0.0 if timeout in (0, timedelta(0)) else seconds_of(timeout)

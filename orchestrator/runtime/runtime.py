"""Executes runs: one engine, one store, any number of flows at once."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, ParamSpec, TypeVar

from orchestrator.clock import Clock, SystemClock
from orchestrator.durability.arguments import Arguments
from orchestrator.durability.leases import LEASE_S, Leases
from orchestrator.durability.liveness import executing_run, process_identity
from orchestrator.durability.recorder import RunRecorder
from orchestrator.events import Event, Listener
from orchestrator.execution.causality import own_task
from orchestrator.execution.context import LiveRun
from orchestrator.execution.flow_spec import FlowSpec
from orchestrator.learning.feasibility import check_feasible
from orchestrator.learning.knowledge import Knowledge, Learner
from orchestrator.learning.stage_deadlines import StageDeadlines
from orchestrator.runtime.flow_loading import reference_of
from orchestrator.runtime.handle import RunHandle
from orchestrator.runtime.recovery import InterruptedRun, load_interrupted
from orchestrator.runtime.results import RunResult
from orchestrator.runtime.run_execution import execute_run
from orchestrator.runtime.task_tracker import TaskTracker
from serving.generation import Engine
from store.errors import RunExists, RunNotFound
from store.records import RunRecord, Status
from store.session import Store

logger = logging.getLogger("orchestrate")

P = ParamSpec("P")
R = TypeVar("R")


class Runtime:
    """Runs flows on one engine, recorded in one store. Made by `open_runtime`.

    Args:
        learner: what past runs taught; by default from the store alone, and never fitted here.
        durable: keep arguments and results in the store, so that an interrupted run can be
            resumed.
        record_text: keep prompts and answers as well, to be read again.
        user: whose the runs are whose flows do not say it.
        on_event: each told of everything that happens, for display. If one raises, that is
            logged, it is not called again, and the runs go on.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        *,
        learner: Learner | None = None,
        clock: Clock | None = None,
        durable: bool = True,
        record_text: bool = False,
        user: str = "",
        on_event: Sequence[Listener] = (),
    ) -> None:
        self.engine = engine
        self.store = store
        self._learner = learner or Learner(store, models=None)
        self._clock = clock or SystemClock()
        self._leases = Leases(store, self._clock)
        self._handles: dict[str, RunHandle[Any]] = {}
        self._under_way = TaskTracker()
        self._durable = durable
        self._record_text = record_text
        self._user = user
        self._on_event = list(on_event)
        self._said_meaningless = False

    async def run(self, flow: FlowSpec[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RunResult[R]:
        """Execute a flow as a run of its own.

        A flow with the id of a run that is recorded goes on with that one: it is resumed, or its
        result is returned if it has ended.

        Raises:
            DeadlineExceeded: the flow's deadline passed first; what was done is recorded.
            DeadlineInfeasible: no past run was so quick, and the flow is to fail then.
            StoreError: the run could not be recorded.
            ArgumentsDiffer, RunNotResumable: a run of this id is recorded, and this is not it.
            And whatever the flow's body raises.
        """
        arguments = Arguments(args, kwargs)
        known = None if flow.run_id is None else await load_interrupted(self.store, flow.run_id)
        if known is not None:
            known.require_same(flow, arguments)
            if known.input is not None:
                arguments = known.arguments(flow)
            return await self._go_on(flow, known, arguments)
        await self._prepare()
        knowledge = await self._learner.knowledge_of(flow.name)
        check_feasible(flow.name, flow.deadline_s, knowledge.library, flow.infeasible)
        live = self._live(flow, knowledge)
        record = self._record(live, flow)

        given = arguments.dump_if_possible(flow.body) if self._durable else None
        if given is not None:  # as a resumed run has them
            arguments = Arguments.load(flow.body, given)
        begin = partial(live.recorder.run_started, record, arguments=given)
        try:
            return await self._executed(live, flow, arguments, record, begin)
        except RunExists as error:
            if error.args != (flow.run_id,):
                raise
        # Somebody else began it since we looked: whether it is this one shows as ever.
        return await self.run(flow, *args, **kwargs)

    def start(self, flow: FlowSpec[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RunHandle[R]:
        """Begin a run and go on; its handle tells what comes of it. As `run` in all else."""
        return self.begin(flow, args, kwargs)

    def begin(
        self,
        flow: FlowSpec[..., R],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        release: Callable[[], Awaitable[None]] | None = None,
    ) -> RunHandle[R]:
        """The same, and something that is done once it has ended."""
        run_id = flow.run_id or secrets.token_hex(6)

        async def work() -> RunResult[R]:
            try:
                return await self.run(replace(flow, run_id=run_id), *args, **kwargs)
            finally:
                if release is not None:
                    await release()

        task = asyncio.ensure_future(work())
        self._under_way.add(task)
        handle = RunHandle(run_id, task)
        former = self._handles.get(run_id)
        if former is None or former.status is not Status.RUNNING:  # else the events are its own
            self._handles[run_id] = handle
            handle.when_ended(lambda: self._forget(handle))
        return handle

    def _forget(self, handle: RunHandle[Any]) -> None:
        if self._handles.get(handle.id) is handle:
            del self._handles[handle.id]

    async def end_runs(self) -> None:
        """End what is under way, and record it; once the engine is closed, before the store is."""
        await self._under_way.end()

    async def resume(
        self,
        run_id: str,
        flow: FlowSpec[..., R] | None = None,
        *,
        allow_changed: bool = False,
    ) -> RunResult[R]:
        """Go on with a run that was interrupted or failed, from the last recorded outcome.

        Args:
            flow: its flow; by default what its record says, imported.
            allow_changed: go on where the flow's code comes to other steps than are recorded.
        Raises:
            RunNotFound: no such run.
            RunNotResumable: another process is at work on it, its arguments were not recorded, or
                its flow cannot be imported.
            FlowChanged, OutcomeUnknown: as they say.
            And what `run` raises.
        """
        known = await load_interrupted(self.store, run_id)
        if known is None:
            raise RunNotFound(run_id)
        flow = known.flow() if flow is None else flow
        return await self._go_on(flow, known, known.arguments(flow), allow_changed=allow_changed)

    async def _go_on(
        self,
        flow: FlowSpec[..., R],
        known: InterruptedRun,
        arguments: Arguments,
        *,
        allow_changed: bool = False,
    ) -> RunResult[R]:
        if known.record.status is Status.COMPLETED:
            return RunResult(
                value=known.result(flow),
                run_id=known.record.id,
                deadline_s=known.record.deadline_s,
                elapsed_s=known.record.elapsed_s or 0.0,
                stages=(),
            )
        known.require_orphaned()
        await self._prepare()
        former = known.record
        flow = replace(flow, run_id=former.id, deadline_s=former.deadline_s, user=former.slo_user)
        knowledge = await self._learner.knowledge_of(flow.name)
        live = self._live(flow, knowledge, age_s=known.age_s(self._clock.wall()))
        known.restore(live, allow_changed=allow_changed)
        record = replace(self._record(live, flow), attempts=former.attempts + 1)
        begin = partial(live.recorder.run_resumed, former, record)
        return await self._executed(live, flow, arguments, record, begin)

    async def _prepare(self) -> None:
        await self.engine.start()
        self._say_if_meaningless()

    async def _executed(
        self,
        live: LiveRun,
        flow: FlowSpec[..., R],
        arguments: Arguments,
        record: RunRecord,
        begin: Callable[[], Awaitable[None]],
    ) -> RunResult[R]:
        """Record that a run begins, do it, and learn from it."""

        async def execute() -> RunResult[R]:
            own_task()
            with executing_run(live.id):
                await begin()
                async with self._leases.held(record) as live.recorder.writer.lease:
                    try:
                        return await execute_run(live, flow, arguments)
                    finally:
                        at = self._clock.wall()
                        await self._learner.run_ended(live.flow, used=live.pattern_uses, at=at)

        waiting = asyncio.current_task()
        assert waiting is not None
        before = waiting.cancelling()
        live.was_cancelled = lambda: waiting.cancelling() > before
        # A task of its own, so that nothing of the run's context is left in the caller's.
        executing = asyncio.create_task(execute())
        self._under_way.add(executing)
        return await executing

    def _live(self, flow: FlowSpec[P, R], knowledge: Knowledge, *, age_s: float = 0.0) -> LiveRun:
        """A run that began `age_s` ago."""
        run_id = flow.run_id or secrets.token_hex(6)
        started_s = self._clock.now_s() - age_s
        deadline_at_s = math.inf if flow.deadline_s is None else started_s + flow.deadline_s
        return LiveRun(
            id=run_id,
            flow=flow.name,
            engine=self.engine,
            recorder=RunRecorder(
                self.store,
                self._clock,
                run_id=run_id,
                started_s=started_s,
                durable=self._durable,
                record_text=self._record_text,
            ),
            clock=self._clock,
            emit=self._emit,
            started_s=started_s,
            deadline_at_s=deadline_at_s,
            stage_deadlines=StageDeadlines(
                deadline_at_s=deadline_at_s,
                expected_stages=flow.expected_stages,
                match=knowledge.library.matcher.begin() if knowledge.library else None,
            ),
            knowledge=knowledge,
            loop=asyncio.get_running_loop(),
            user=self._user if flow.user is None else flow.user,
        )

    def _record(self, live: LiveRun, flow: FlowSpec[..., Any]) -> RunRecord:
        info, now = self.engine.info, self._clock.wall()
        return RunRecord(
            id=live.id,
            flow=live.flow,
            started_at=now,
            claimed_at=now,
            leased_until=now + timedelta(seconds=LEASE_S),
            deadline_s=flow.deadline_s,
            entry=reference_of(flow.body) if self._durable else None,
            engine=info.name,
            model=info.model,
            policy=info.policy,
            random_weights=info.random_weights,
            process_id=os.getpid(),
            host=socket.gethostname(),
            process=process_identity(),
            slo_user=live.user,
        )

    def _say_if_meaningless(self) -> None:
        if self.engine.info.random_weights and not self._said_meaningless:
            self._said_meaningless = True
            logger.warning("the demo model's weights are random: what it writes is meaningless")

    def _emit(self, event: Event) -> None:
        """Tell the listeners. One that fails is told no more: no display may end a run."""
        if (handle := self._handles.get(event.run_id)) is not None:
            handle.tell(event)
        for listener in tuple(self._on_event):
            try:
                listener(event)
            except Exception:
                self._on_event.remove(listener)
                logger.exception("on_event failed, and is not called any more: %r", listener)

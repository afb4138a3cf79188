"""Executes runs: one engine, one store, any number of flows at once."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

from orchestrator.causality import own_task
from orchestrator.clock import Clock, SystemClock
from orchestrator.context import CallTrace, LiveRun, Position, at, none_if_infinite
from orchestrator.deadlines import StageDeadlines
from orchestrator.errors import DeadlineExceeded
from orchestrator.events import Event, Listener, RunFinished, RunStarted
from orchestrator.identity import Scope
from orchestrator.knowledge import Knowledge, Learner
from orchestrator.learning import pattern_record
from orchestrator.recorder import RunRecorder, status_of, text_of
from serving.generation import Engine
from store.records import RunRecord
from store.session import Store

if TYPE_CHECKING:
    from orchestrator.flow import Flow

logger = logging.getLogger("orchestrate")

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class StageReport:
    """One stage of a run. Times in seconds from the run's start; None: no deadline, not ended."""

    stage: int
    calls: tuple[str, ...]
    started_s: float
    ended_s: float | None
    sub_deadline_s: float | None
    source: str


@dataclass(frozen=True, slots=True)
class RunResult(Generic[R]):
    """What a run came to."""

    value: R
    run_id: str
    deadline_s: float | None
    elapsed_s: float
    stages: tuple[StageReport, ...]

    @property
    def in_time(self) -> bool:
        """Whether the run ended by its deadline."""
        return self.deadline_s is None or self.elapsed_s <= self.deadline_s


class Runtime:
    """Runs flows on one engine, recorded in one store. Made by `open_runtime`.

    Args:
        learner: what past runs taught; by default from the store alone, and never fitted here.
        record_text: keep prompts, answers, arguments and results in the store. By default it
            holds no plain text.
        on_event: told of everything that happens, for display. If it raises, that is logged, it
            is not called again, and the runs go on.
    """

    def __init__(
        self,
        engine: Engine,
        store: Store,
        *,
        learner: Learner | None = None,
        clock: Clock | None = None,
        record_text: bool = False,
        on_event: Listener | None = None,
    ) -> None:
        self.engine = engine
        self.store = store
        self._learner = learner or Learner(store, models=None)
        self._clock = clock or SystemClock()
        self._record_text = record_text
        self._on_event = on_event
        self._said_meaningless = False

    async def run(self, flow: Flow[P, R], /, *args: P.args, **kwargs: P.kwargs) -> RunResult[R]:
        """Execute a flow as a run of its own.

        Raises:
            DeadlineExceeded: the flow's deadline passed first; what was done is recorded.
            StoreError: the run could not be recorded.
            And whatever the flow's body raises.
        """
        await self.engine.start()
        self._say_if_meaningless()
        live = self._live(flow, await self._learner.knowledge_of(flow.name))
        # A task of its own, so that nothing of the run's context is left in the caller's.
        return await asyncio.create_task(self._execute(live, flow, args, kwargs))

    async def _execute(
        self, live: LiveRun, flow: Flow[P, R], args: Any, kwargs: Any
    ) -> RunResult[R]:
        own_task()
        await live.recorder.run_started(
            self._record(live, flow.deadline_s),
            argument_text=_shown_arguments(args, kwargs) if self._record_text else "",
        )
        error: BaseException | None = None
        result_text = ""
        try:
            self._emit(RunStarted(live.id, live.flow, flow.deadline_s))
            with at(Position(live, Scope(), live.deadline_at_s)) as position:
                value = await _by_deadline(position, flow, args, kwargs)
            result_text = text_of(value) if self._record_text else ""
        except BaseException as caught:
            error = caught
            raise
        finally:
            elapsed_s = live.since_start_s()
            ended_at = self._clock.wall()
            await live.recorder.run_ended(
                ended_at=ended_at,
                elapsed_s=elapsed_s,
                error=error,
                result_text=result_text,
                pattern=pattern_record(live, ended_at) if error is None else None,
            )
            self._emit(RunFinished(live.id, str(status_of(error)), elapsed_s))
            await self._learner.run_ended(live.flow, used=live.used, at=ended_at)
        return RunResult(
            value=value,
            run_id=live.id,
            deadline_s=flow.deadline_s,
            elapsed_s=elapsed_s,
            stages=stage_reports(live),
        )

    def _live(self, flow: Flow[P, R], knowledge: Knowledge) -> LiveRun:
        run_id = flow.run_id or secrets.token_hex(6)
        started_s = self._clock.now_s()
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
        )

    def _record(self, live: LiveRun, deadline_s: float | None) -> RunRecord:
        info = self.engine.info
        return RunRecord(
            id=live.id,
            flow=live.flow,
            started_at=self._clock.wall(),
            deadline_s=deadline_s,
            engine=info.name,
            model=info.model,
            policy=info.policy,
            random_weights=info.random_weights,
            process_id=os.getpid(),
            host=socket.gethostname(),
        )

    def _say_if_meaningless(self) -> None:
        if self.engine.info.random_weights and not self._said_meaningless:
            self._said_meaningless = True
            logger.warning("the demo model's weights are random: what it writes is meaningless")

    def _emit(self, event: Event) -> None:
        """Tell the listener. One that fails is told no more: no display may end a run."""
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:
            self._on_event = None
            logger.exception("on_event failed, and is not called any more")


def stage_reports(live: LiveRun) -> tuple[StageReport, ...]:
    """The stages of a run, first to last, each with the calls made in it."""
    by_stage: dict[int, list[CallTrace]] = defaultdict(list)
    for call in live.calls:
        by_stage[call.stage].append(call)
    reports = []
    for stage, calls in sorted(by_stage.items()):
        ends = [call.ended_s for call in calls if call.ended_s is not None]
        sub_deadline_s = none_if_infinite(live.since_start_s(calls[0].deadline.at_s))
        reports.append(
            StageReport(
                stage=stage,
                calls=tuple(call.identity for call in calls),
                started_s=live.since_start_s(calls[0].began_s),
                ended_s=live.since_start_s(max(ends)) if ends else None,
                sub_deadline_s=sub_deadline_s,
                source="" if sub_deadline_s is None else calls[0].deadline.source,
            )
        )
    return tuple(reports)


async def _by_deadline(position: Position, flow: Flow[Any, R], args: Any, kwargs: Any) -> R:
    if flow.deadline_s is None:
        return await flow.body(*args, **kwargs)
    try:
        async with asyncio.timeout(position.remaining_s()) as limit:
            return await flow.body(*args, **kwargs)
    except (TimeoutError, asyncio.CancelledError):
        # An expired limit ends in CancelledError where the flow left asyncio's count of
        # cancellations wrong, as Python 3.11's own TaskGroup does when it fails.
        if not limit.expired():
            raise
        raise DeadlineExceeded(flow.name, flow.deadline_s) from None


def _shown_arguments(args: Any, kwargs: Any) -> str:
    named = [f"{name}={text_of(value, repr)}" for name, value in kwargs.items()]
    return ", ".join([*(text_of(value, repr) for value in args), *named])

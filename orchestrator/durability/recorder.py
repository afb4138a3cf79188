"""Records what happens in a run in the store: in order, each fact in its own transaction."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.clock import RunClock
from orchestrator.durability.error_codec import steps_ended_by
from orchestrator.durability.journal_writer import FAILURES, JournalWriter, Work
from orchestrator.durability.outcome_order import OutcomeOrder
from orchestrator.durability.outcomes import status_of, type_of
from orchestrator.durability.user_data import UserData
from orchestrator.errors import DeadlineExceeded, OutcomeNotRecorded
from store.errors import AlreadyRecorded
from store.records import (
    CallOutcome,
    CallRecord,
    Effects,
    PatternRecord,
    RunOutcome,
    RunRecord,
    StageRecord,
    Status,
    StepOutcome,
    StepRecord,
)
from store.state_records import StateChange

if TYPE_CHECKING:
    from store.session import Store
    from store.unit_of_work import Transaction


class RunRecorder:
    """Records one run: results only if it is durable, texts only if the user asked for them.

    The start of a step or call is recorded before its work begins, and its end however it ends.
    A write always completes. If a task is cancelled while a start is written, its end is recorded
    as well. The start and end of an external effect survive a loss of power, with all before them.

    Attributes:
        data: users' data of the run in the store.
        writer: makes the transactions; holds the run's lease once the run's start is recorded.
        order: in which the outcomes of steps reach the flow.
        retries: a run that fails is queued again if it asks for that, or else dead.
    """

    def __init__(
        self,
        store: Store,
        clock: RunClock,
        *,
        run_id: str,
        started_s: float,
        durable: bool,
        record_text: bool,
    ) -> None:
        self._store = store
        self._clock = clock
        self._run_id = run_id
        self._started_s = started_s
        self.data = UserData(store, durable=durable, record_text=record_text)
        self.writer = JournalWriter(store, run_id, wall=clock.wall)
        self.order = OutcomeOrder(run_id)
        self.retries = False

    async def run_started(
        self, record: RunRecord, *, arguments: bytes | None, history: Work | None = None
    ) -> None:
        """Record a run's start, before any of its work begins.

        Args:
            history: writes in the same transaction what the run has from another one; it raises if
                it cannot have that.
        """

        async def write(tx: Transaction) -> None:
            payload = await self.data.put_json(tx, arguments)
            await tx.runs.add(replace(record, input_payload=payload))
            if history is not None:
                await history(tx)

        async def cancelled(error: asyncio.CancelledError) -> None:
            ended_at, elapsed_s = self._clock.wall(), self._since_start_s()
            await self.run_ended(ended_at=ended_at, elapsed_s=elapsed_s, error=error)

        await self.writer.begin(write, cancelled=cancelled)

    async def run_ended(
        self,
        *,
        ended_at: datetime,
        elapsed_s: float,
        error: BaseException | None,
        result: bytes | None = None,
        pattern: PatternRecord | None = None,
    ) -> None:
        """Record how the run ended: its result, the steps that ended it by errors, its pattern."""

        async def write(tx: Transaction) -> None:
            payload = await self.data.put_json(tx, result)
            outcome = RunOutcome(
                status=status_of(error),
                finished_at=ended_at,
                elapsed_s=elapsed_s,
                error_type=type_of(error),
                error_message=self.data.message_of(error),
                result_payload=payload,
                clock_stopped_s=self._clock.stopped_s,
            )
            attempts = 1 if self.writer.lease is None else self.writer.lease.attempts
            await tx.runs.finish(self._run_id, outcome, attempts=attempts)
            if error is not None:
                await tx.journal.ended_run(self._run_id, steps_ended_by(error, self._run_id))
            if pattern is not None:
                await tx.patterns.replace(pattern)  # that of a run which failed before
            if self.retries and not isinstance(error, DeadlineExceeded):
                await tx.claims.retry(self._run_id, attempts=attempts, wall=ended_at)

        try:
            await self.writer.write(write)
        except AlreadyRecorded:  # this process was taken for dead, and the run marked as cancelled
            if status_of(error) is not Status.CANCELLED:
                raise

    async def run_resumed(self, former: RunRecord, record: RunRecord) -> None:
        """Record that this process resumes a run.

        Args:
            former: the run as it was read.
            record: the run as this process executes it.
        Raises:
            RunChanged: the record has changed since: another process has resumed the run.
        """

        async def write(tx: Transaction) -> None:
            await tx.runs.resume(former, record)
            await tx.calls.interrupt(self._run_id)

        await self.writer.write(write)

    async def step(self, path: str) -> StepRecord:
        """The record of a step of this run; another process may have recorded its end."""
        async with self._store.reading() as tx:
            return await tx.journal.get(self._run_id, path)

    async def find_reusable(self, key: bytes, *, max_age_s: float) -> StepRecord | None:
        """The newest step with this key, of a run that began at most `max_age_s` ago."""
        since = datetime.min.replace(tzinfo=UTC)
        if math.isfinite(max_age_s):
            since = self._clock.wall() - timedelta(seconds=max_age_s)
        async with self._store.reading() as tx:
            return await tx.journal.reusable(key, since)

    async def step_reused(self, step: StepRecord, source: StepRecord) -> None:
        """Record that a step was not executed and has the result of another run's step.

        Raises:
            PayloadMissing: that result was deleted meanwhile.
        """
        self.writer.require_complete()
        ended = replace(
            step,
            status=Status.COMPLETED,
            finished_s=self._since_start_s(),
            result=source.result,
            result_payload=source.result_payload,
            reuse_key=None,  # a copy is not reused: a result's age counts from where it was made
            outcome_number=self.order.number(step.path),
        )
        written = self.writer.write(lambda tx: tx.journal.start(ended))
        await self._in_order(step.path, written)

    async def answer_received(self, question: StepRecord) -> StepRecord:
        """Record when the flow reads the answer to a question, which another process recorded.

        Returns:
            The step with the answer: until now it could be replaced.
        """
        number = self.order.number(question.path)
        answered = question

        async def write(tx: Transaction) -> None:
            nonlocal answered
            read_s = self._since_start_s()
            await tx.journal.number_outcome(self._run_id, question.path, number, read_s=read_s)
            if question.stops_clock:
                await tx.runs.clock_stopped(self._run_id, self._clock.stopped_s)
            answered = await tx.journal.get(self._run_id, question.path)

        await self._in_order(question.path, self.writer.write(write))
        return answered

    async def step_started(self, step: StepRecord, *, began_before: bool = False) -> None:
        """Record that a step begins.

        Args:
            began_before: the step is recorded already, and its end is unknown.
        """

        async def write(tx: Transaction) -> None:
            await self._start(tx, step, began_before)

        await self.writer.begin(
            write, cancelled=partial(self.step_ended, step), synced=_is_external(step)
        )

    async def question_asked(
        self, step: StepRecord, *, began_before: bool, refused: bool = False
    ) -> StepRecord | None:
        """Record that a question waits for its answer, unless it has been answered.

        Args:
            began_before: the question is recorded already.
            refused: the recorded answer did not fit, so that the question is asked again.
        Returns:
            The step with its answer; None: it waits.
        """
        answered: StepRecord | None = None

        async def write(tx: Transaction) -> None:
            nonlocal answered
            unless = None if refused else Status.COMPLETED
            if not began_before:
                await tx.journal.start(step)
            elif not await tx.journal.start_again(step, at=self._clock.wall(), unless=unless):
                answered = await tx.journal.get(self._run_id, step.path)

        async def cancelled(error: asyncio.CancelledError) -> None:
            with suppress(AlreadyRecorded):  # it has been answered
                await self.step_ended(step, error)

        await self.writer.begin(write, cancelled=cancelled)
        return answered

    async def step_ended(
        self,
        step: StepRecord,
        error: BaseException | None,
        *,
        result: bytes | None = None,
        environment: StateChange | None = None,
    ) -> None:
        """Record how a step ended, and its result (of an error, as `encode_error`).

        It returns once the outcome may reach the flow.

        Args:
            environment: what the step did to its workspace; recorded with the outcome, or neither.
        """
        outcome = self._step_outcome(step, error, environment)

        async def write(tx: Transaction) -> None:
            await self._finish(tx, step, outcome, result, environment)

        await self._write_end(step, write)

    def value_recorded(self, step: StepRecord) -> None:
        """Record a step of kind VALUE, together with the next write."""
        if (stored := self.data.value(step)) is not None:
            self.writer.defer(stored)

    async def call_started(
        self,
        record: CallRecord,
        *,
        step: StepRecord,
        began_before: bool,
        parents: tuple[int, ...],
        stage: StageRecord | None = None,
        resumed: bool = False,
        prompt_text: str = "",
        cut_off: Callable[[], None] = lambda: None,
    ) -> None:
        """Record that an LLM or tool call begins, the calls it depends on, and a stage it begins.

        Args:
            step: the call as a step of the journal.
            began_before: that step is recorded already, and its end is unknown.
            parents: nodes of the calls that it depends on.
            stage: the stage that begins with this call; None: it had begun.
            resumed: whether the run was resumed, so that the stage may be recorded already.
            cut_off: called if the call is cut off while its start is written, as `recorded` of
                `call_ended`.
        """

        async def write(tx: Transaction) -> None:
            await self._start(tx, step, began_before)
            payload = await self.data.put_text(tx, prompt_text)
            await tx.calls.start(replace(record, prompt_payload=payload), parents=parents)
            if stage is not None:
                await (tx.stages.start_again(stage) if resumed else tx.stages.start(stage))

        async def cancelled(error: asyncio.CancelledError) -> None:
            await self.call_ended(record.node, step, error=error, recorded=cut_off)

        await self.writer.begin(write, cancelled=cancelled, synced=_is_external(step))

    async def call_ended(
        self,
        node: int,
        step: StepRecord,
        *,
        error: BaseException | None,
        result: bytes | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        ttft_s: float | None = None,
        finish_reason: str | None = None,
        output_text: str = "",
        environment: StateChange | None = None,
        ended_s: float | None = None,
        is_part: bool = False,
        recorded: Callable[[], None] = lambda: None,
    ) -> None:
        """Record how a call ended, both as a call and as a step of the journal; as `step_ended`.

        Args:
            environment: as in `step_ended`.
            ended_s: seconds from the run's start to its end; None: now.
            is_part: the flow has read a part of the answer, the result, and left: the step is
                completed, although the call is cancelled.
            recorded: called once that is done: a call that begins before does not depend on it.
        """
        step_outcome = self._step_outcome(step, None if is_part else error, environment)
        outcome = CallOutcome(
            status=status_of(error),
            finished_s=self._since_start_s() if ended_s is None else ended_s,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            ttft_s=ttft_s,
            finish_reason=finish_reason,
            error_type=type_of(error),
            error_message=self.data.message_of(error),
        )

        async def write(tx: Transaction) -> None:
            await self._finish(tx, step, step_outcome, result, environment)
            payload = await self.data.put_text(tx, output_text)
            await tx.calls.finish(self._run_id, node, replace(outcome, output_payload=payload))

        await self._write_end(step, write, recorded)

    async def _finish(
        self,
        tx: Transaction,
        step: StepRecord,
        outcome: StepOutcome,
        result: bytes | None,
        environment: StateChange | None,
    ) -> None:
        """Record the outcome of a step, and what it did to its workspace."""
        ended = await self.data.with_result(tx, outcome, result)
        await tx.journal.finish(self._run_id, step.path, ended)
        if environment is not None:
            assert all(edge.path == step.path for edge in environment.edges)
            assert environment.checkpoint is None or environment.checkpoint.path == step.path
            await tx.states.record(environment)

    async def _write_end(
        self, step: StepRecord, write: Work, recorded: Callable[[], None] = lambda: None
    ) -> None:
        """Write how a step ended.

        Raises:
            OutcomeNotRecorded: the step is an external effect, and the store failed.
        """
        is_external = _is_external(step)
        try:
            written = self.writer.write(write, synced=is_external)
            await self._in_order(step.path, written, recorded)
        except FAILURES as error:
            if not is_external:
                raise
            raise OutcomeNotRecorded(self._run_id, step.path, str(error)) from error

    async def _in_order(
        self,
        path: str,
        written: Awaitable[None],
        recorded: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a numbered outcome; returns once it may reach the flow."""
        try:
            await written
            recorded()
            await self.order.turn(path)
        finally:
            self.order.drop(path)

    def _step_outcome(
        self, step: StepRecord, error: BaseException | None, environment: StateChange | None
    ) -> StepOutcome:
        status = status_of(error)
        is_known = status is not Status.CANCELLED  # else a resumed run executes the step again
        return StepOutcome(
            status=status,
            outcome_number=self.order.number(step.path) if is_known else step.outcome_number,
            finished_s=self._since_start_s(),
            error_type=type_of(error),
            error_message=self.data.message_of(error),
            state_after=None if environment is None else environment.state_after,
        )

    async def _start(self, tx: Transaction, step: StepRecord, began_before: bool) -> None:
        if began_before:
            await tx.journal.start_again(step, at=self._clock.wall())
        else:
            await tx.journal.start(step)

    def _since_start_s(self) -> float:
        return self._clock.now_s() - self._started_s


def _is_external(step: StepRecord) -> bool:
    """Whether its records must survive a loss of power: else the effect could be repeated."""
    return step.effects is Effects.EXTERNAL

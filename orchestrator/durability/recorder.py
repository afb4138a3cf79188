"""What happened in a run -> the store, in order, each fact in a transaction of its own."""

from __future__ import annotations

import asyncio
import math
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

from orchestrator.clock import Clock
from orchestrator.durability.error_codec import steps_ended_by
from orchestrator.durability.journal_writer import JournalWriter
from orchestrator.durability.outcomes import message_of, status_of, type_of
from store.errors import AlreadyRecorded
from store.records import (
    CallOutcome,
    CallRecord,
    PatternRecord,
    RunOutcome,
    RunRecord,
    StageRecord,
    Status,
    StepOutcome,
    StepRecord,
)
from store.session import Store
from store.unit_of_work import Transaction

SMALL_BYTES = 512
"""A result of more is a payload."""


class RunRecorder:
    """Records one run: its results if it is to be durable, its texts if the user asked for that.

    What began is recorded as begun before it does anything, and as ended whatever happens: a
    write is never given up halfway, and a start that was cancelled is recorded with its end.

    Attributes:
        writer: holds the right to write, from when the run's start is recorded.
    """

    def __init__(
        self,
        store: Store,
        clock: Clock,
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
        self._durable = durable
        self._record_text = record_text
        self.writer = JournalWriter(store, run_id)

    async def run_started(self, record: RunRecord, *, arguments: bytes | None) -> None:
        """Record a run before anything of it happens."""

        async def write(tx: Transaction) -> None:
            name = await self._kept_json(tx, arguments)
            await tx.runs.add(replace(record, input_payload=name))

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
        """Record how the run ended and by which steps, its result, and the pattern it left."""

        async def write(tx: Transaction) -> None:
            name = await self._kept_json(tx, result)
            outcome = RunOutcome(
                status=status_of(error),
                finished_at=ended_at,
                elapsed_s=elapsed_s,
                error_type=type_of(error),
                error_message=self._message_of(error),
                result_payload=name,
            )
            attempts = 1 if self.writer.lease is None else self.writer.lease.attempts
            await tx.runs.finish(self._run_id, outcome, attempts=attempts)
            if error is not None:
                await tx.journal.ended_run(self._run_id, steps_ended_by(error, self._run_id))
            if pattern is not None:
                await tx.patterns.add(pattern)

        await self.writer.write(write)

    async def run_resumed(self, former: RunRecord, record: RunRecord) -> None:
        """Record that this process goes on with a run, unless another one does.

        Args:
            former: as it was read.
            record: who goes on with it now.
        Raises:
            RunChanged: it is not as it was read any more.
        """

        async def write(tx: Transaction) -> None:
            await tx.runs.resume(former, record)
            await tx.calls.interrupt(self._run_id)

        await self.writer.write(write)

    async def step(self, path: str) -> StepRecord:
        """A step of this run as it is recorded; somebody else may have recorded its end."""
        async with self._store.reading() as tx:
            return await tx.journal.get(self._run_id, path)

    async def result_of(self, step: StepRecord) -> bytes | None:
        """What is recorded as a step's result."""
        if step.result_payload is None:
            return step.result
        async with self._store.reading() as tx:
            return await tx.payloads.get(step.result_payload)

    async def reusable(self, key: bytes, *, max_age_s: float) -> StepRecord | None:
        """The newest result under a key, of a run that began at most so long ago."""
        since = datetime.min.replace(tzinfo=UTC)
        if math.isfinite(max_age_s):
            since = self._clock.wall() - timedelta(seconds=max_age_s)
        async with self._store.reading() as tx:
            return await tx.journal.reusable(key, since)

    async def step_reused(self, step: StepRecord, found: StepRecord) -> None:
        """Record that a step has the result of another run's, and was not done.

        Raises:
            PayloadMissing: that result was removed since it was found.
        """
        ended = replace(
            step,
            status=Status.COMPLETED,
            finished_s=self._since_start_s(),
            result=found.result,
            result_payload=found.result_payload,
            reuse_key=None,  # a result grows old from where it was made
        )
        await self.writer.write(lambda tx: _start(tx, ended, again=False))

    async def step_started(self, step: StepRecord, *, again: bool = False) -> None:
        """Record that a step begins; `again` where it began before and its end is not known."""

        async def write(tx: Transaction) -> None:
            await _start(tx, step, again)

        await self.writer.begin(write, cancelled=partial(self.step_ended, step.path))

    async def question_asked(
        self, step: StepRecord, *, again: bool, refused: bool = False
    ) -> StepRecord | None:
        """Record that a question waits, as a step that begins; not where it has its answer by now.

        Args:
            refused: the answer that it has does not count.
        Returns:
            its record with the answer; None: it waits.
        """
        answered: StepRecord | None = None

        async def write(tx: Transaction) -> None:
            nonlocal answered
            unless = None if refused else Status.COMPLETED
            if not again:
                await tx.journal.start(step)
            elif not await tx.journal.start_again(step, unless=unless):
                answered = await tx.journal.get(self._run_id, step.path)

        async def cancelled(error: asyncio.CancelledError) -> None:
            with suppress(AlreadyRecorded):  # it has its answer
                await self.step_ended(step.path, error)

        await self.writer.begin(write, cancelled=cancelled)
        return answered

    async def step_ended(
        self, path: str, error: BaseException | None, *, result: bytes | None = None
    ) -> None:
        """Record how a step ended, and what came of it."""
        outcome = self._step_outcome(error)

        async def write(tx: Transaction) -> None:
            await self._finish(tx, path, outcome, result)

        await self.writer.write(write)

    def note(self, step: StepRecord) -> None:
        """Record a step that took no time, together with what is recorded next."""
        if self._durable:
            self.writer.note(step)

    async def call_started(
        self,
        record: CallRecord,
        *,
        step: StepRecord,
        again: bool,
        parents: tuple[int, ...],
        stage: StageRecord | None = None,
        resumed: bool = False,
        prompt_text: str = "",
    ) -> None:
        """Record that an LLM or tool call begins, what it waited for, and any stage it opens.

        Args:
            step: the call as the journal has it, and whether it began before (`again`).
            resumed: whether the stage may have begun before.
        """

        async def write(tx: Transaction) -> None:
            await _start(tx, step, again)
            payload = await self._kept(tx, prompt_text)
            await tx.calls.start(replace(record, prompt_payload=payload), parents=parents)
            if stage is not None:
                await (tx.stages.start_again(stage) if resumed else tx.stages.start(stage))

        async def cancelled(error: asyncio.CancelledError) -> None:
            await self.call_ended(record.node, step.path, error=error)

        await self.writer.begin(write, cancelled=cancelled)

    async def call_ended(
        self,
        node: int,
        path: str,
        *,
        error: BaseException | None,
        result: bytes | None = None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        ttft_s: float | None = None,
        finish_reason: str | None = None,
        output_text: str = "",
    ) -> None:
        """Record how a call ended, and what came of it as a step of the journal."""
        step = self._step_outcome(error)
        outcome = CallOutcome(
            status=status_of(error),
            finished_s=self._since_start_s(),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            ttft_s=ttft_s,
            finish_reason=finish_reason,
            error_type=type_of(error),
            error_message=self._message_of(error),
        )

        async def write(tx: Transaction) -> None:
            await self._finish(tx, path, step, result)
            payload = await self._kept(tx, output_text)
            await tx.calls.finish(self._run_id, node, replace(outcome, output_payload=payload))

        await self.writer.write(write)

    async def _finish(
        self, tx: Transaction, path: str, outcome: StepOutcome, result: bytes | None
    ) -> None:
        if result is not None and len(result) > SMALL_BYTES:
            outcome = replace(outcome, result_payload=await self._kept_json(tx, result))
        elif self._durable:
            outcome = replace(outcome, result=result)
        await tx.journal.finish(self._run_id, path, outcome)

    def _step_outcome(self, error: BaseException | None) -> StepOutcome:
        return StepOutcome(
            status=status_of(error),
            finished_s=self._since_start_s(),
            error_type=type_of(error),
            error_message=self._message_of(error),
        )

    async def _kept_json(self, tx: Transaction, data: bytes | None) -> str | None:
        """The hash under which a result is kept; None where there is none, or none is kept."""
        if not self._durable or data is None:
            return None
        return await tx.payloads.put(data, media_type="application/json")

    async def _kept(self, tx: Transaction, text: str) -> str | None:
        """The hash under which a text is kept; None where texts are not recorded."""
        if not (self._record_text and text):
            return None
        # A lone surrogate, which no encoding takes, must not cost the whole record.
        return await tx.payloads.put(text.encode(errors="replace"), media_type="text/plain")

    def _message_of(self, error: BaseException | None) -> str | None:
        return message_of(error, may_quote=self._record_text)

    def _since_start_s(self) -> float:
        return self._clock.now_s() - self._started_s


async def _start(tx: Transaction, step: StepRecord, again: bool) -> None:
    await (tx.journal.start_again(step) if again else tx.journal.start(step))

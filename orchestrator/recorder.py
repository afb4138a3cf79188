"""What happened in a run -> the store, in order, each fact in a transaction of its own."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime

from orchestrator.clock import Clock
from orchestrator.errors import DeadlineExceeded, OutsideRun
from orchestrator.waiting import finished
from serving.errors import EngineBusy, EngineClosed, PromptTooLong, RequestDropped
from store.errors import StoreError
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

MESSAGE_LIMIT = 500
"""Longest recorded error message, in characters."""

# What these say is made of names, ids and numbers. Any other error may quote what users wrote.
_QUOTES_NOTHING = (
    DeadlineExceeded,
    OutsideRun,
    PromptTooLong,
    RequestDropped,
    EngineBusy,
    EngineClosed,
    StoreError,
)


class RunRecorder:
    """Records one run. Texts are kept only where the user asked for it (`record_text`).

    What began is recorded as begun before it does anything, and as ended whatever happens: a
    write is never given up halfway, and a start that was cancelled is recorded with its end.
    """

    def __init__(
        self, store: Store, clock: Clock, *, run_id: str, started_s: float, record_text: bool
    ) -> None:
        self._store = store
        self._clock = clock
        self._run_id = run_id
        self._started_s = started_s
        self._record_text = record_text

    async def run_started(self, record: RunRecord, *, argument_text: str) -> None:
        """Record a run before anything of it happens."""

        async def write() -> None:
            async with self._store.transaction() as tx:
                payload = await self._kept(tx, argument_text)
                await tx.runs.add(replace(record, input_payload=payload))

        try:
            await finished(write())
        except asyncio.CancelledError as cancelled:
            ended_at, elapsed_s = self._clock.wall(), self._since_start_s()
            await self.run_ended(ended_at=ended_at, elapsed_s=elapsed_s, error=cancelled)
            raise

    async def run_ended(
        self,
        *,
        ended_at: datetime,
        elapsed_s: float,
        error: BaseException | None,
        result_text: str = "",
        pattern: PatternRecord | None = None,
    ) -> None:
        """Record how the run ended, and the pattern it left, together."""

        async def write() -> None:
            async with self._store.transaction() as tx:
                payload = await self._kept(tx, result_text) if error is None else None
                outcome = RunOutcome(
                    status=status_of(error),
                    finished_at=ended_at,
                    elapsed_s=elapsed_s,
                    error_type=_type_of(error),
                    error_message=self._message_of(error),
                    result_payload=payload,
                )
                await tx.runs.finish(self._run_id, outcome)
                if pattern is not None:
                    await tx.patterns.add(pattern)

        await finished(write())

    async def step_started(self, path: str, name: str) -> None:
        """Record that a step begins."""
        record = StepRecord(
            run_id=self._run_id, path=path, name=name, started_s=self._since_start_s()
        )

        async def write() -> None:
            async with self._store.transaction() as tx:
                await tx.journal.start(record)

        try:
            await finished(write())
        except asyncio.CancelledError as cancelled:
            await self.step_ended(path, cancelled)
            raise

    async def step_ended(self, path: str, error: BaseException | None) -> None:
        """Record how a step ended."""
        outcome = StepOutcome(
            status=status_of(error),
            finished_s=self._since_start_s(),
            error_type=_type_of(error),
            error_message=self._message_of(error),
        )

        async def write() -> None:
            async with self._store.transaction() as tx:
                await tx.journal.finish(self._run_id, path, outcome)

        await finished(write())

    async def call_started(
        self,
        record: CallRecord,
        *,
        parents: tuple[int, ...],
        stage: StageRecord | None = None,
        prompt_text: str = "",
    ) -> None:
        """Record that an LLM or tool call begins, what it waited for, and any stage it opens."""

        async def write() -> None:
            async with self._store.transaction() as tx:
                payload = await self._kept(tx, prompt_text)
                await tx.calls.start(replace(record, prompt_payload=payload), parents=parents)
                if stage is not None:
                    await tx.stages.start(stage)

        try:
            await finished(write())
        except asyncio.CancelledError as cancelled:
            await self.call_ended(record.node, error=cancelled)
            raise

    async def call_ended(
        self,
        node: int,
        *,
        error: BaseException | None,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
        cached_tokens: int | None = None,
        ttft_s: float | None = None,
        finish_reason: str | None = None,
        output_text: str = "",
    ) -> None:
        """Record how a call ended."""
        outcome = CallOutcome(
            status=status_of(error),
            finished_s=self._since_start_s(),
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            cached_tokens=cached_tokens,
            ttft_s=ttft_s,
            finish_reason=finish_reason,
            error_type=_type_of(error),
            error_message=self._message_of(error),
        )

        async def write() -> None:
            async with self._store.transaction() as tx:
                payload = await self._kept(tx, output_text)
                await tx.calls.finish(self._run_id, node, replace(outcome, output_payload=payload))

        await finished(write())

    async def _kept(self, tx: Transaction, text: str) -> str | None:
        """The hash under which a text is kept; None where texts are not recorded."""
        if not (self._record_text and text):
            return None
        # A lone surrogate, which no encoding takes, must not cost the whole record.
        return await tx.payloads.put(text.encode(errors="replace"), media_type="text/plain")

    def _message_of(self, error: BaseException | None) -> str | None:
        """What an error says, unless that may be a user's text, which is not to be kept."""
        if error is None or not (self._record_text or isinstance(error, _QUOTES_NOTHING)):
            return None
        return text_of(error)[:MESSAGE_LIMIT]

    def _since_start_s(self) -> float:
        return self._clock.now_s() - self._started_s


def status_of(error: BaseException | None) -> Status:
    """How something ended, by the error that ended it."""
    if error is None:
        return Status.COMPLETED
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return Status.CANCELLED
    return Status.FAILED


def text_of(value: object, show: Callable[[object], str] = str) -> str:
    """A value as text; a class that cannot show its values must not end a run."""
    try:
        return show(value)
    except Exception as error:
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def _type_of(error: BaseException | None) -> str | None:
    return None if error is None else type(error).__name__

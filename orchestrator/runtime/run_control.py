"""Lists, answers and cancels the runs of a store, whichever process executes them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, get_args

from pydantic_core import PydanticSerializationError, to_json

from orchestrator.clock import Clock, SystemClock
from orchestrator.display.run_text import error_of
from orchestrator.durability.answer_schema import why_not
from orchestrator.durability.liveness import is_orphaned, status_shown
from orchestrator.durability.questions import age_s, open_questions, question_to_answer
from orchestrator.errors import AnswerRefused, NoOpenQuestion, RunAlreadyEnded
from store.errors import AlreadyRecorded, RunChanged
from store.payload_codec import JSON, encoded
from store.records import RunOutcome, RunRecord, Status, StepRecord

if TYPE_CHECKING:
    from store.session import Store

RunStatus = Literal["running", "completed", "failed", "cancelled", "orphaned", "queued", "dead"]
"""A run's status. Orphaned: it is recorded as running, but the process that executed it is gone.
Queued: it waits for a worker. Dead: it was lost with its workers, or failed, too often."""

POLL_S = 0.2
"""Seconds between two looks whether a cancelled run has ended."""

_BATCH = 500  # runs whose questions are read by one statement


@dataclass(frozen=True, slots=True)
class Question:
    """A question of a run to a person.

    Attributes:
        path: names the question within its run.
        text: the question; if an answer was not taken, with the reason.
        schema: JSON schema of the answers that fit; None: not known.
    """

    path: str
    text: str
    schema: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class RunInfo:
    """A recorded run, as it was when it was read.

    Attributes:
        user: "" without one.
        tags: those of its flow's `options(tags=)`.
        ended_at: None: it has not ended.
        elapsed_s: from its start to its end; None: it has not ended.
        deadline_s: from its start; None: none.
        error: the error that ended it: its class, and its message if that was recorded; None: none.
        questions: those that wait for an answer, in the order in which they were asked.
        forked_from: id of the run that it was forked from; None: of none.
        queue: the queue to which it was submitted; None: to none.
    """

    id: str
    flow: str
    status: RunStatus
    user: str
    tags: Mapping[str, str]
    started_at: datetime
    ended_at: datetime | None
    elapsed_s: float | None
    deadline_s: float | None
    error: str | None
    questions: tuple[Question, ...]
    forked_from: str | None = None
    queue: str | None = None


class RunControl:
    """The runs of a store. A `Runtime` is one too; it needs no engine."""

    def __init__(self, store: Store, clock: Clock | None = None) -> None:
        self.store = store
        self._clock = clock or SystemClock()

    def wall(self) -> datetime:
        """The time by the clock that it was given."""
        return self._clock.wall()

    async def runs(
        self,
        *,
        flow: str | None = None,
        status: RunStatus | None = None,
        user: str | None = None,
        tags: Mapping[str, str] | None = None,
        limit: int | None = 100,
    ) -> list[RunInfo]:
        """Recorded runs, of this process and others, newest first.

        Args:
            flow: only runs of the flow with this name.
            status: only runs with this status.
            user: only runs of this user.
            tags: only runs with all of these; they may have others too.
            limit: how many at most; None: all.
        Raises:
            ValueError: the status is unknown, or the limit is negative.
        """
        if limit is not None and limit < 0:
            raise ValueError(f"limit={limit} must not be negative")
        records = await newest_runs(
            self.store, flow=flow, status=status, user=user, tags=tags, limit=limit
        )
        steps: dict[str, list[StepRecord]] = {}
        async with self.store.reading() as tx:
            for start in range(0, len(records), _BATCH):
                ids = [record.id for record, _ in records[start : start + _BATCH]]
                for step in await tx.journal.questions_of(ids):
                    steps.setdefault(step.run_id, []).append(step)
        return [_info(record, shown, steps.get(record.id, ())) for record, shown in records]

    async def get(self, run_id: str) -> RunInfo:
        """One recorded run; raises RunNotFound."""
        async with self.store.reading() as tx:
            record = await tx.runs.get(run_id)
            return _info(record, status_shown(record), await tx.journal.questions_of([run_id]))

    async def answer(self, run_id: str, value: Any, *, question: str | None = None) -> Question:
        """Answer a question of a run, or replace an answer that the flow has not read yet.

        A run without a process reads the answer when it is resumed.

        Args:
            value: a text is read by the type that the question asks for, as `orchestrate answer`
                reads it; anything else that pydantic can write as JSON is the value itself.
            question: its path; by default the first open question, or else the last answered one
                whose answer the flow has not read.
        Returns:
            The question that was answered.
        Raises:
            RunNotFound: there is no such run.
            NoOpenQuestion: it has no such question, or the flow has read an answer to it.
            AnswerRefused: the value does not fit the question's type. The question stays open.
        """
        async with self.store.transaction() as tx:
            run = await tx.runs.get(run_id)
            asked = question_to_answer(run, await tx.journal.questions_of([run_id]), question)
            answer = _written(asked, value)
            reason = why_not(asked.answer_schema, answer)
            if reason is not None:
                raise AnswerRefused(run_id, asked.path, reason)
            stored = encoded(self.store.codec, answer, JSON)
            if not await tx.journal.answer(run_id, asked.path, stored):
                raise NoOpenQuestion(run_id, "has read an answer to this question meanwhile")
        return _question(asked)

    async def cancel(self, run_id: str) -> RunInfo:
        """Cancel a run, whichever process executes it; returns once its end is recorded.

        Its process sees that within a second or so, and cancels the flow. A run whose process is
        gone is recorded as cancelled. A cancelled run can be resumed. If this call is cancelled,
        for example by a timeout around it, the run is cancelled nevertheless.

        Returns:
            The run as it ended; it may have completed or failed just before.
        Raises:
            RunNotFound: there is no such run.
            RunAlreadyEnded: it had ended before.
        """
        async with self.store.transaction() as tx:
            is_waiting = await tx.waiting.cancel(run_id, at=await tx.now(self._clock.wall()))
            if not is_waiting and not await tx.runs.request_cancel(run_id, self._clock.wall()):
                record = await tx.runs.get(run_id)
                raise RunAlreadyEnded(run_id, str(record.status))
        if is_waiting:
            return await self.get(run_id)
        await self._cancel_own_runs()
        while True:
            async with self.store.reading() as tx:
                record = await tx.runs.get(run_id)
            if record.cancel_requested_at is None or record.status is not Status.RUNNING:
                return await self.get(run_id)  # ended; perhaps it has been resumed since
            if not (is_orphaned(record) and await self._end_orphan(record)):
                await asyncio.sleep(POLL_S)

    async def _cancel_own_runs(self) -> None:
        """Cancel those runs at once that are to be cancelled and that this process executes."""

    async def _end_orphan(self, record: RunRecord) -> bool:
        """Record that a run without a process is cancelled; False: it has changed since."""
        now = self._clock.wall()
        try:
            async with self.store.transaction() as tx:
                elapsed_s = age_s(record, await tx.journal.questions_of([record.id]), now)
                outcome = RunOutcome(
                    status=Status.CANCELLED,
                    finished_at=now,
                    elapsed_s=elapsed_s,
                    error_type=asyncio.CancelledError.__name__,
                    clock_stopped_s=(now - record.started_at).total_seconds() - elapsed_s,
                )
                await tx.runs.finish(record.id, outcome, attempts=record.attempts)
                await tx.calls.interrupt(record.id)
        except (AlreadyRecorded, RunChanged):
            return False
        return True


async def newest_runs(
    store: Store,
    *,
    flow: str | None = None,
    status: str | None = None,
    user: str | None = None,
    tags: Mapping[str, str] | None = None,
    limit: int | None = None,
) -> list[tuple[RunRecord, str]]:
    """The newest runs with what is given, as they are recorded, and the status of each.

    Raises:
        ValueError: the status is not a RunStatus.
    """
    if status not in (None, *get_args(RunStatus)):
        raise ValueError(f"status={status!r} must be one of: {', '.join(get_args(RunStatus))}")
    recorded = Status.RUNNING if status == "orphaned" else status and Status(status)
    # Orphaned runs are recorded as running: only after reading all can they be filtered.
    reads_all = recorded is Status.RUNNING
    async with store.reading() as tx:
        records = await tx.runs.newest(
            limit=None if reads_all else limit,
            status=recorded or None,
            flow=flow,
            user=user,
            tags=tags,
        )
    runs = [(record, status_shown(record)) for record in records]
    return [(record, shown) for record, shown in runs if status in (None, shown)][:limit]


def _written(question: StepRecord, value: Any) -> bytes:
    """An answer as it is recorded; raises AnswerRefused."""
    try:
        if not isinstance(value, str):
            return to_json(value)
        value.encode()
    except UnicodeEncodeError:
        reason = "it is not valid UTF-8"
    except (PydanticSerializationError, ValueError) as error:
        reason = str(error)
    else:
        return json.dumps(value).encode()
    raise AnswerRefused(question.run_id, question.path, reason)


def _info(record: RunRecord, shown: str, steps: Sequence[StepRecord]) -> RunInfo:
    status: Any = shown
    return RunInfo(
        id=record.id,
        flow=record.flow,
        status=status,
        user=record.slo_user,
        tags=dict(record.tags),
        started_at=record.started_at,
        ended_at=record.finished_at,
        elapsed_s=record.elapsed_s,
        deadline_s=record.deadline_s,
        error=error_of(record) or None,
        questions=tuple(_question(step) for step in open_questions(record, steps)),
        forked_from=None if record.forked_from is None else str(record.forked_from["run"]),
        queue=record.queue,
    )


def _question(step: StepRecord) -> Question:
    return Question(step.path, step.name, step.answer_schema)

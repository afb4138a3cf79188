"""The runs that wait in queues, and the queues themselves: limits, pauses, counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import case, func, literal, select, tuple_, update

from store.database.connection import StoreConnection
from store.errors import QueueDraining, RunExists, RunNotQueueable
from store.models import Queue, Run
from store.queue.conditions import (
    IS_ACTIVE,
    IS_QUEUED,
    ORDER,
    database_now,
    queued_again,
    wake_workers,
)
from store.queue.records import QueueCounts, QueueRecord
from store.records import RunRecord, Status
from store.runs import Runs
from store.statements import insert_new, record_of

_RUNS = select(*Run.__table__.columns)
_QUEUES = select(*Queue.__table__.columns)
_COUNTED = (Status.QUEUED, Status.RUNNING, Status.DEAD)
_CAN_BE_QUEUED_AGAIN = (Status.DEAD, Status.FAILED, Status.CANCELLED)
_ATTEMPTS_TO_ADD = 3  # the run with the same key may end while it is looked up


class Waiting:
    """The waiting runs and the queues of one transaction."""

    def __init__(self, connection: StoreConnection, runs: Runs) -> None:
        self._connection = connection
        self._runs = runs

    async def add(self, run: RunRecord) -> RunRecord:
        """Submit a run.

        Returns:
            The run; if its queue has one with its deduplication key that waits or is in progress,
            that one, and nothing is written.
        Raises:
            QueueDraining: its queue takes no runs now.
            RunExists, PayloadMissing, InvalidAttributes: as `Runs.add`.
        """
        assert run.queue is not None
        assert run.status is Status.QUEUED
        await insert_new(self._connection, Queue, {"name": run.queue})
        for _ in range(_ATTEMPTS_TO_ADD):
            if run.dedup_key is not None:
                same = await self._with_key(run.queue, run.dedup_key)
                if same is not None:
                    return same
            if (await self.get(run.queue)).is_draining:
                raise QueueDraining(run.queue)
            try:
                await self._runs.add(run)
            except RunExists:
                if run.dedup_key is None or await self._has(run.id):
                    raise
            else:
                await wake_workers(self._connection, run.queue)
                return run
        raise RunExists(run.id)

    async def requeue(
        self, run_id: str, *, wall: datetime, allowed_s: float | None = None
    ) -> RunRecord:
        """Queue a run again that is dead, failed or was cancelled; its attempts count anew.

        Args:
            allowed_s: a new deadline, from now; None: the run keeps its own, from its submission.
        Raises:
            RunNotFound: there is no such run.
            RunNotQueueable: it was not submitted to a queue, or is not in one of these states.
        """
        run = await self._runs.get(run_id)
        if run.queue is None:
            raise RunNotQueueable(run_id, "it was not submitted to a queue: resume it")
        if run.status not in _CAN_BE_QUEUED_AGAIN:
            raise RunNotQueueable(run_id, f"it is {run.status}")
        now = await database_now(self._connection, wall)
        values = queued_again(attempts=run.attempts, failed_attempts=0)
        if allowed_s is not None:
            age_s = max((now - run.started_at).total_seconds(), 0.0)
            due_at = now + timedelta(seconds=allowed_s)
            values |= {"deadline_s": age_s + allowed_s, "due_at": due_at}
        changed = await self._connection.execute(
            update(Run)
            .where(Run.id == run_id, Run.status == run.status, Run.attempts == run.attempts)
            .values(**values, not_before=None, dedup_key=None)
        )
        if not changed.rowcount:
            raise RunNotQueueable(run_id, "another process has changed it meanwhile")
        await wake_workers(self._connection, run.queue)
        return await self._runs.get(run_id)

    async def cancel(self, run_id: str, *, at: datetime) -> bool:
        """Cancel a run that waits; returns whether it did."""
        result = await self._connection.execute(
            select(Run.started_at).where(Run.id == run_id, IS_QUEUED).with_for_update()
        )
        row = result.one_or_none()
        if row is None:
            return False
        await self._connection.execute(
            update(Run)
            .where(Run.id == run_id)
            .values(
                status=Status.CANCELLED,
                finished_at=at,
                elapsed_s=max((at - row.started_at).total_seconds(), 0.0),
                error_type="CancelledError",
            )
        )
        return True

    async def of(self, queue: str, *, limit: int | None = None) -> Sequence[RunRecord]:
        """The waiting runs of a queue, in the order in which they are claimed."""
        result = await self._connection.execute(
            _RUNS.where(IS_QUEUED, Run.queue == queue).order_by(*ORDER).limit(limit)
        )
        return [record_of(RunRecord, row) for row in result.mappings()]

    async def num_ahead(self, run: RunRecord) -> int:
        """How many waiting runs of its queue are claimed before a run, those of later included."""
        mine = tuple_(*map(literal, (run.rank, run.due_at, run.started_at, run.id)))
        ahead = select(func.count()).where(IS_QUEUED, Run.queue == run.queue, tuple_(*ORDER) < mine)
        return int(await self._connection.scalar(ahead) or 0)

    async def get(self, name: str) -> QueueRecord:
        """A queue; one that is not recorded has no limits."""
        result = await self._connection.execute(_QUEUES.where(Queue.name == name))
        row = result.mappings().one_or_none()
        return QueueRecord(name) if row is None else record_of(QueueRecord, row)

    async def counts(self, *, wall: datetime) -> Mapping[QueueRecord, QueueCounts]:
        """All queues that are recorded, by name, and how many runs each has."""
        now = await database_now(self._connection, wall)
        rows = await self._connection.execute(_QUEUES.order_by(Queue.name))
        queues = {row["name"]: record_of(QueueRecord, row) for row in rows.mappings()}
        is_later = case((Run.not_before > now, 1), else_=0)
        result = await self._connection.execute(
            select(
                Run.queue, Run.status, func.count().label("num"), func.sum(is_later).label("later")
            )
            .where(Run.queue.in_(list(queues)), Run.status.in_(_COUNTED))
            .group_by(Run.queue, Run.status)
        )
        found = {(row.queue, row.status): row for row in result}

        def num(name: str, status: Status) -> int:
            return found[name, status].num if (name, status) in found else 0

        return {
            queue: QueueCounts(
                num_queued=num(name, Status.QUEUED),
                num_later=int(found[name, Status.QUEUED].later)
                if (name, Status.QUEUED) in found
                else 0,
                num_running=num(name, Status.RUNNING),
                num_dead=num(name, Status.DEAD),
            )
            for name, queue in queues.items()
        }

    async def change(self, name: str, **values: Any) -> QueueRecord:
        """Change fields of a queue, which is recorded if it was not."""
        await insert_new(self._connection, Queue, {"name": name})
        await self._connection.execute(update(Queue).where(Queue.name == name).values(**values))
        await wake_workers(self._connection, name)
        return await self.get(name)

    async def _with_key(self, queue: str, key: str) -> RunRecord | None:
        query = _RUNS.where(IS_ACTIVE, Run.queue == queue, Run.dedup_key == key)
        row = (await self._connection.execute(query)).mappings().one_or_none()
        return None if row is None else record_of(RunRecord, row)

    async def _has(self, run_id: str) -> bool:
        return bool(await self._connection.scalar(select(Run.id).where(Run.id == run_id)))

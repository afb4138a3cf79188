"""Claims: workers take the next runs of queues, within the limits, and those of lost workers.

PostgreSQL skips the rows that another worker is claiming. If a queue has limits, its row is locked
until the claim commits: the runs in progress are counted and one is claimed without another claim
in between. A SQLite store has one writer at a time.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from sqlalchemy import BindParameter, Integer, Select, bindparam, func, or_, select, tuple_, update
from sqlalchemy.sql.dml import ReturningUpdate

from store.database.column_types import UtcDateTime
from store.database.connection import StoreConnection
from store.models import Queue, Run
from store.queue.conditions import (
    IS_IN_PROGRESS,
    IS_QUEUED,
    ORDER,
    database_now,
    queued_again,
    wake_workers,
)
from store.queue.records import Claim, Claimant, QueueRecord
from store.records import RunRecord, Status
from store.statements import columns_of, record_of

WORKER_LOST = "WorkerLost"
"""Type of the error with which a run is dead that was lost with its workers."""

_BATCH = 100  # runs that are reclaimed in one transaction
_MOMENT = UtcDateTime()
_QUEUES = select(*Queue.__table__.columns)
_FIELDS = [field.name for field in fields(QueueRecord)]
_NAMED = _QUEUES.where(Queue.name.in_(bindparam("names", expanding=True)))
_LOCKED = _NAMED.order_by(Queue.name).with_for_update()


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """A run that its worker has lost or handed back.

    Attributes:
        status: QUEUED, DEAD, or CANCELLED if that was asked for.
    """

    run_id: str
    queue: str
    status: Status


class Claims:
    """The claims of one transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def take(self, claim: Claim, *, num: int, wall: datetime) -> list[RunRecord]:
        """Claim the next runs: they are in progress from now on, leased to the claimant.

        Of a queue they come in order of priority, deadline and submission.

        Args:
            num: how many at most.
            wall: this machine's time, used where the database has no clock.
        Returns:
            In the order in which they are due; `claimed_at` is the time by the database's clock.
        """
        if not claim.versions:
            return []
        queues, now = await self._open_queues(claim.queues, wall)
        claimed: list[RunRecord] = []
        for name in claim.queues:
            if name in queues and len(claimed) < num:
                claimed += await self._take_from(queues[name], claim, num - len(claimed), now)
        return claimed

    async def reclaim(self, *, wall: datetime) -> list[Reclaimed]:
        """Queue the runs with expired leases again; their workers are lost.

        A run that has lost its worker too often is dead instead, and one that was to be cancelled
        is cancelled.
        """
        now = await database_now(self._connection, wall)
        lapsed = select(Run.__table__).where(IS_IN_PROGRESS, Run.leased_until < now)
        return await self._give_up(lapsed.limit(_BATCH), now, is_counted=True)

    async def hand_back(
        self,
        attempts: Mapping[str, int],
        *,
        wall: datetime,
        is_counted: bool = False,
        error: tuple[str, str | None] | None = None,
    ) -> list[Reclaimed]:
        """Queue runs again that their worker does not go on with.

        Args:
            attempts: run id -> the caller's attempt; runs of others are left alone.
            is_counted: it counts as a failed attempt.
            error: type and message of the error with which a run that is dead by that ended.
        """
        now = await database_now(self._connection, wall)
        mine = tuple_(Run.id, Run.attempts).in_(list(attempts.items()))
        query = select(Run.__table__).where(IS_IN_PROGRESS, mine)
        return await self._give_up(query, now, is_counted=is_counted, error=error)

    async def retry(self, run_id: str, *, attempts: int, wall: datetime) -> Status | None:
        """Queue a run again that has failed, if it asks for that; after too often it is dead.

        The pause doubles with each failure. Called in the transaction that records the failure.

        Args:
            attempts: the caller's attempt.
        Returns:
            Its new status; None: it asks for no retry.
        """
        query = select(Run.__table__).where(Run.id == run_id, Run.attempts == attempts)
        row = (await self._connection.execute(query)).mappings().one_or_none()
        if row is None or row["status"] is not Status.FAILED or row["retry_s"] is None:
            return None
        failed = row["failed_attempts"] + 1
        now = await database_now(self._connection, wall)
        if failed >= row["max_attempts"]:
            values: dict[str, Any] = {"status": Status.DEAD, "failed_attempts": failed}
        else:
            pause = timedelta(seconds=min(row["retry_s"] * 2 ** (failed - 1), _LONGEST_PAUSE_S))
            values = queued_again(attempts=attempts, failed_attempts=failed)
            values["not_before"] = now + pause
        await self._connection.execute(update(Run).where(Run.id == run_id).values(**values))
        status: Status = values["status"]
        return status

    async def _open_queues(
        self, names: Sequence[str], wall: datetime
    ) -> tuple[dict[str, QueueRecord], datetime]:
        """The queues from which may be claimed now, and the time by the database's clock.

        They are locked until the transaction ends if they are limited. All are locked at once and
        in order of their names: two claims cannot wait for each other.
        """
        found, now = await self._read_queues(_NAMED, names, wall)
        limited = [queue.name for queue in found.values() if queue.is_limited]
        if limited:
            locked, now = await self._read_queues(_LOCKED, limited, wall)
            found |= locked
        return {name: queue for name, queue in found.items() if not queue.is_paused}, now

    async def _read_queues(
        self, query: Select[Any], names: Sequence[str], wall: datetime
    ) -> tuple[dict[str, QueueRecord], datetime]:
        if self._connection.dialect.name == "postgresql":  # one statement instead of two
            query = _with_clock(query)
        rows = (await self._connection.execute(query, {"names": list(names)})).mappings().all()
        now = rows[0].get("now", wall) if rows else wall
        found = [QueueRecord(**{name: row[name] for name in _FIELDS}) for row in rows]
        return {queue.name: queue for queue in found}, now

    async def _take_from(
        self, queue: QueueRecord, claim: Claim, num: int, now: datetime
    ) -> list[RunRecord]:
        if not queue.is_limited:
            return await self._take_next(queue.name, claim, num, now)
        running = await self._running_by_user(queue.name)
        if queue.max_running is not None:
            num = min(num, queue.max_running - running.total())
        if queue.max_running_of_user is None:
            return await self._take_next(queue.name, claim, num, now)
        claimed: list[RunRecord] = []
        while len(claimed) < num:
            full = [user for user, n in running.items() if n >= queue.max_running_of_user]
            found = await self._take_next(queue.name, claim, 1, now, without_users=full)
            if not found:
                break
            running[found[0].slo_user] += 1
            claimed += found
        return claimed

    async def _running_by_user(self, queue: str) -> Counter[str]:
        result = await self._connection.execute(
            select(Run.slo_user, func.count().label("num"))
            .where(IS_IN_PROGRESS, Run.queue == queue)
            .group_by(Run.slo_user)
        )
        return Counter({row.slo_user: row.num for row in result})

    async def _take_next(
        self,
        queue: str,
        claim: Claim,
        num: int,
        now: datetime,
        *,
        without_users: Collection[str] = (),
    ) -> list[RunRecord]:
        if num <= 0:
            return []
        values = {
            "of_queue": queue,
            "at": now,
            "until": now + timedelta(seconds=claim.lease_s),
            "most": num,
            "flows": list(claim.versions if claim.any_version else claim.versions.items()),
            "full_users": list(without_users),
            **{f"new_{name}": value for name, value in columns_of(claim.claimant).items()},
        }
        statement = _taking(claim.any_version, bool(without_users))
        result = await self._connection.execute(statement, values)
        claimed = [record_of(RunRecord, row) for row in result.mappings()]
        return sorted(claimed, key=_in_order)

    async def _give_up(
        self,
        query: Select[Any],
        now: datetime,
        *,
        is_counted: bool,
        error: tuple[str, str | None] | None = None,
    ) -> list[Reclaimed]:
        rows = await self._connection.execute(query.with_for_update(skip_locked=True))
        given_up = []
        for row in [record_of(RunRecord, each) for each in rows.mappings()]:
            values = _after_loss(row, now, is_counted=is_counted, error=error)
            await self._connection.execute(update(Run).where(Run.id == row.id).values(**values))
            assert row.queue is not None, "IS_IN_PROGRESS"
            given_up.append(Reclaimed(row.id, row.queue, values["status"]))
        for queue in sorted({each.queue for each in given_up if each.status is Status.QUEUED}):
            await wake_workers(self._connection, queue)
        return given_up


_LONGEST_PAUSE_S = 86400.0


@cache
def _with_clock(query: Select[Any]) -> Select[Any]:
    """The query with a column for the time by the database's clock."""
    return query.add_columns(func.clock_timestamp(type_=_MOMENT).label("now"))


@cache  # to build a statement takes longer than to execute it
def _taking(any_version: bool, has_full_users: bool) -> ReturningUpdate[Any]:
    """Claim the next runs of a queue that the claimant has the code of."""
    flows: BindParameter[Any] = bindparam("flows", expanding=True)
    fits = Run.flow.in_(flows) if any_version else tuple_(Run.flow, Run.code_version).in_(flows)
    may_begin = or_(Run.not_before.is_(None), Run.not_before <= bindparam("at", type_=_MOMENT))
    query = select(Run.id).where(IS_QUEUED, Run.queue == bindparam("of_queue"), may_begin, fits)
    if has_full_users:
        query = query.where(Run.slo_user.not_in(bindparam("full_users", expanding=True)))
    # Not a subquery: PostgreSQL might execute that several times.
    picked = (
        query.order_by(*ORDER)
        .limit(bindparam("most", type_=Integer))
        .with_for_update(skip_locked=True)
        .cte("picked")
    )
    return (
        update(Run)
        .where(Run.id.in_(select(picked.c.id)))
        .values(
            status=Status.RUNNING,
            claimed_at=bindparam("at", type_=_MOMENT),
            leased_until=bindparam("until", type_=_MOMENT),
            **{each.name: bindparam(f"new_{each.name}") for each in fields(Claimant)},
        )
        .returning(*Run.__table__.columns)
    )


def _in_order(run: RunRecord) -> tuple[int, datetime | None, datetime, str]:
    return run.rank, run.due_at, run.started_at, run.id


def _after_loss(
    run: RunRecord, now: datetime, *, is_counted: bool, error: tuple[str, str | None] | None
) -> dict[str, Any]:
    """The values of a run in progress that no worker goes on with."""
    ended = {
        "finished_at": now,
        "elapsed_s": max((now - run.started_at).total_seconds() - run.clock_stopped_s, 0.0),
        "attempts": run.attempts + 1,
        "leased_until": None,
    }
    if run.cancel_requested_at is not None:
        return ended | {"status": Status.CANCELLED, "error_type": "CancelledError"}
    failed = run.failed_attempts + int(is_counted)
    if is_counted and failed >= run.max_attempts:
        lost = (WORKER_LOST, f"no worker brought it to an end in {failed} attempts")
        error_type, error_message = error or lost
        return ended | {
            "status": Status.DEAD,
            "failed_attempts": failed,
            "error_type": error_type,
            "error_message": error_message,
        }
    return queued_again(attempts=run.attempts, failed_attempts=failed)

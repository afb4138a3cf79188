"""Conditions and values that the statements on queued runs share.

A partial index is used only by a statement with the same literals as its condition: PostgreSQL does
not know a parameter's value when it plans for all of them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import func, select, text

from store.database.column_types import UtcDateTime
from store.database.connection import StoreConnection
from store.models import Run
from store.records import Status

IS_QUEUED = text("runs.status = 'queued'")
IS_IN_PROGRESS = text("runs.status = 'running' AND runs.queue IS NOT NULL")
IS_ACTIVE = text("runs.dedup_key IS NOT NULL AND runs.status IN ('queued', 'running')")

CHANNEL = "orchestrate_queue"
"""PostgreSQL's channel on which a submission wakes the workers."""

ORDER = (Run.rank, Run.due_at, Run.started_at, Run.id)
"""In which the runs of a queue are claimed: priority, then deadline, then submission."""

NO_OUTCOME: dict[str, Any] = {
    "finished_at": None,
    "elapsed_s": None,
    "error_type": None,
    "error_message": None,
    "cancel_requested_at": None,
    "leased_until": None,
}
"""What a run has that is queued again."""

_NOTIFY = text("SELECT pg_notify(:channel, :queue)")
_NOW = select(func.clock_timestamp(type_=UtcDateTime()))


async def database_now(connection: StoreConnection, wall: datetime) -> datetime:
    """The time by the database's clock, which all machines share.

    Args:
        wall: this machine's time: a SQLite file has no other clock.
    """
    if connection.dialect.name == "sqlite":
        return wall
    now: datetime = await connection.scalar(_NOW)
    return now


async def wake_workers(connection: StoreConnection, queue: str) -> None:
    """Wake the workers that wait for runs, once the transaction commits; SQLite cannot."""
    if connection.dialect.name == "postgresql":
        await connection.execute(_NOTIFY, {"channel": CHANNEL, "queue": queue[:1000]})


def queued_again(*, attempts: int, failed_attempts: int) -> dict[str, Any]:
    """The values of a run that waits again: the next attempt, so that the former cannot write."""
    return NO_OUTCOME | {
        "status": Status.QUEUED,
        "attempts": attempts + 1,
        "failed_attempts": failed_attempts,
    }

"""Schedules: flows that are submitted again and again, by whichever worker looks first."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime

from sqlalchemy import delete, select, update

from store.database.connection import StoreConnection
from store.errors import ScheduleNotFound
from store.models import Schedule
from store.queue.records import ScheduleRecord
from store.statements import columns_of, put_row, record_of

_COLUMNS = select(*Schedule.__table__.columns)


class Schedules:
    """The schedules of one transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def put(self, schedule: ScheduleRecord) -> None:
        """Record a schedule, or replace the one of this name."""
        values = columns_of(schedule) | {"tags": dict(schedule.tags)}
        await put_row(self._connection, Schedule, values)

    async def get(self, name: str) -> ScheduleRecord:
        """The schedule of this name; raises ScheduleNotFound."""
        result = await self._connection.execute(_COLUMNS.where(Schedule.name == name))
        row = result.mappings().one_or_none()
        if row is None:
            raise ScheduleNotFound(name)
        return record_of(ScheduleRecord, row)

    async def all(self) -> Sequence[ScheduleRecord]:
        """All of them, by name."""
        result = await self._connection.execute(_COLUMNS.order_by(Schedule.name))
        return [record_of(ScheduleRecord, row) for row in result.mappings()]

    async def due(
        self, *, flows: Collection[str], queues: Collection[str], now: datetime
    ) -> Sequence[ScheduleRecord]:
        """Those of these flows and queues whose time has come.

        They are locked until the transaction ends; those that another worker looks at are left out.
        """
        result = await self._connection.execute(
            _COLUMNS.where(
                Schedule.next_at <= now,
                Schedule.is_paused.is_(False),
                Schedule.flow.in_(flows),
                Schedule.queue.in_(queues),
            )
            .order_by(Schedule.next_at)
            .with_for_update(skip_locked=True)
        )
        return [record_of(ScheduleRecord, row) for row in result.mappings()]

    async def move(self, name: str, next_at: datetime) -> None:
        """Set when a schedule is due next."""
        await self._connection.execute(
            update(Schedule).where(Schedule.name == name).values(next_at=next_at)
        )

    async def pause(self, name: str, is_paused: bool) -> None:
        """Pause a schedule, or go on with it; raises ScheduleNotFound."""
        changed = await self._connection.execute(
            update(Schedule).where(Schedule.name == name).values(is_paused=is_paused)
        )
        if not changed.rowcount:
            raise ScheduleNotFound(name)

    async def remove(self, name: str) -> None:
        """Remove a schedule; raises ScheduleNotFound."""
        removed = await self._connection.execute(delete(Schedule).where(Schedule.name == name))
        if not removed.rowcount:
            raise ScheduleNotFound(name)

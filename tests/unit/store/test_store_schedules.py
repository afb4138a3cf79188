"""Schedules are stored, due in the order of their times, and seen by one transaction at a time."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from store.errors import ScheduleNotFound
from store.queue.records import ScheduleRecord
from store.session import Store
from tests.unit.store.store_samples import NOON


def a_schedule(name: str = "tides", **changes: Any) -> ScheduleRecord:
    fields: dict[str, Any] = {
        "cron": "30 2 * * *",
        "timezone": "UTC",
        "next_at": NOON,
        "flow": "research",
        "arguments": b"{}",
        "queue": "default",
        "tags": {"team": "sea"},
    }
    return ScheduleRecord(name, **fields | changes)


async def due(store: Store, **changes: Any) -> list[str]:
    given: dict[str, Any] = {"flows": ["research"], "queues": ["default"], "now": NOON}
    async with store.transaction() as tx:
        return [each.name for each in await tx.schedules.due(**given | changes)]


async def test_a_schedule_is_read_as_it_was_put_and_replaced_by_its_name(store: Store) -> None:
    async with store.transaction() as tx:
        for schedule in (a_schedule(), a_schedule(cron="0 3 * * *", deadline_s=5.0, rank=-2)):
            await tx.schedules.put(schedule)
            assert await tx.schedules.get("tides") == schedule
        assert len(await tx.schedules.all()) == 1


async def test_schedules_of_other_flows_and_queues_and_paused_ones_are_not_due(
    store: Store,
) -> None:
    second = timedelta(seconds=1)
    async with store.transaction() as tx:
        for schedule in (
            a_schedule("now"),
            a_schedule("before", next_at=NOON - second),
            a_schedule("later", next_at=NOON + second),
            a_schedule("paused", is_paused=True),
            a_schedule("other-flow", flow="draft"),
            a_schedule("other-queue", queue="q"),
        ):
            await tx.schedules.put(schedule)
    assert await due(store) == ["before", "now"]
    async with store.transaction() as tx:
        await tx.schedules.move("before", NOON + second)
        await tx.schedules.pause("paused", False)
        await tx.schedules.remove("now")
    assert await due(store) == ["paused"]


async def test_a_schedule_that_does_not_exist_is_named(store: Store) -> None:
    async with store.transaction() as tx:
        for work in (
            tx.schedules.get("x"),
            tx.schedules.remove("x"),
            tx.schedules.pause("x", True),
        ):
            with pytest.raises(ScheduleNotFound, match="x"):
                await work

"""Schedules: each time one run, whichever worker looks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from orchestrator import InvalidCron, InvalidQueueOption, Runtime, flow
from orchestrator.runtime.code_versions import versions_of
from orchestrator.runtime.schedules import next_time, submit_scheduled
from store.records import Status

NOON = datetime(2026, 3, 28, 12, 0, 30, tzinfo=UTC)


@flow(deadline="60s")
async def report(topic: str) -> str:
    return topic


async def look(runtime: Runtime, at: datetime) -> list[str]:
    """A worker's look at the schedules at a moment."""
    async with runtime.store.transaction() as tx:
        return await submit_scheduled(
            tx,
            {report.name: report},
            versions_of([report], None),
            queues=("default",),
            wall=at,
        )


@pytest.mark.parametrize(
    ("cron", "timezone", "expected"),
    [
        ("*/5 * * * *", "UTC", datetime(2026, 3, 28, 12, 5, tzinfo=UTC)),
        ("30 2 * * *", "UTC", datetime(2026, 3, 29, 2, 30, tzinfo=UTC)),
        ("0 9 * * mon", "Asia/Tokyo", datetime(2026, 3, 30, 0, 0, tzinfo=UTC)),
    ],
)
def test_the_next_time_is_that_of_the_schedules_zone(
    cron: str, timezone: str, expected: datetime
) -> None:
    assert next_time(cron, timezone, NOON) == expected


def test_a_time_that_a_change_of_clocks_leaves_out_does_not_leave_out_the_day() -> None:
    """In Berlin there is no 2:30 on this night."""
    found = next_time("30 2 * * *", "Europe/Berlin", NOON)
    assert NOON < found < NOON + timedelta(days=1)


@pytest.mark.parametrize(
    ("cron", "timezone", "error"),
    [
        ("", "UTC", InvalidCron),
        ("* * * *", "UTC", InvalidCron),
        ("* * * * * *", "UTC", InvalidCron),
        ("61 * * * *", "UTC", InvalidCron),
        ("0 0 30 2 *", "UTC", InvalidCron),
        ("* * * * *", "Mars", InvalidQueueOption),
        ("* * * * *", "", InvalidQueueOption),
        ("* * * * *", "../etc", InvalidQueueOption),
    ],
)
def test_a_schedule_that_never_comes_is_refused(
    cron: str, timezone: str, error: type[Exception]
) -> None:
    with pytest.raises(error):
        next_time(cron, timezone, NOON)


async def test_each_time_submits_one_run_with_the_schedules_options(runtime: Runtime) -> None:
    queued = report.queued(priority=4, attempts=7).options(user="ann", tags={"a": "b"})
    first = await runtime.schedule(queued, "tides", "*/5 * * * *", arguments={"topic": "sea"})
    assert await look(runtime, first - timedelta(seconds=1)) == []
    [run_id] = await look(runtime, first + timedelta(seconds=1))
    assert await look(runtime, first + timedelta(seconds=2)) == []
    async with runtime.store.reading() as tx:
        run = await tx.runs.get(run_id)
    assert run_id.startswith("tides-")
    assert (run.status, run.priority, run.max_attempts) == (Status.QUEUED, 4, 7)
    assert (run.slo_user, run.tags, run.deadline_s) == ("ann", {"a": "b"}, 60.0)
    assert (await runtime.resume(run_id, report)).value == "sea"


async def test_times_that_passed_without_a_worker_count_as_one(runtime: Runtime) -> None:
    first = await runtime.schedule(report, "tides", "* * * * *", arguments={"topic": "sea"})
    late = first + timedelta(hours=3)
    assert len(await look(runtime, late)) == 1
    async with runtime.store.reading() as tx:
        [schedule] = await tx.schedules.all()
    assert late < schedule.next_at <= late + timedelta(minutes=1)


async def test_a_run_that_is_not_over_keeps_the_next_one_away(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    first = await runtime.schedule(report, "tides", "* * * * *", arguments={"topic": "sea"})
    [run_id] = await look(runtime, first)
    assert await look(runtime, first + timedelta(minutes=2)) == []
    assert f"run {run_id} is not over yet" in caplog.text
    await runtime.cancel(run_id)
    assert len(await look(runtime, first + timedelta(minutes=4))) == 1


@pytest.mark.parametrize("name", ["", "a b", "x" * 41, "../x"])
async def test_a_schedule_needs_a_name_and_arguments(runtime: Runtime, name: str) -> None:
    given: dict[str, Any] = {"topic": "sea"}
    with pytest.raises(InvalidQueueOption):
        await runtime.schedule(report, name, "* * * * *", arguments=given)
    with pytest.raises(TypeError):
        await runtime.schedule(report, "tides", "* * * * *")

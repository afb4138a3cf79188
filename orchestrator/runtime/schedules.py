"""Schedules: when a flow is submitted again, and the worker's part of it."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from orchestrator.durability.arguments import Arguments
from orchestrator.errors import InvalidCron, InvalidQueueOption
from orchestrator.execution.flow_spec import FlowSpec
from orchestrator.execution.queue_options import QueueOptions
from orchestrator.runtime.flow_loading import reference_of
from orchestrator.runtime.submission import queued_record
from store.errors import QueueDraining
from store.payload_codec import JSON, encoded
from store.queue.records import ScheduleRecord

if TYPE_CHECKING:
    from store.session import Store
    from store.unit_of_work import Transaction

logger = logging.getLogger("orchestrate")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}", re.ASCII)


def next_time(cron: str, timezone: str, after: datetime) -> datetime:
    """The first moment of a schedule after another moment.

    Args:
        cron: minute, hour, day of the month, month, day of the week.
        timezone: in which that is meant, such as "Europe/Berlin".
    Raises:
        InvalidCron: the schedule cannot be read, or its time never comes.
        InvalidQueueOption: the time zone is unknown.
    """
    try:
        zone = ZoneInfo(timezone)
    except (KeyError, ValueError, OSError):
        rule = "a name like Europe/Berlin or UTC"
        raise InvalidQueueOption("timezone", timezone, rule) from None
    if len(cron.split()) != 5:
        raise InvalidCron(cron, "it has not five fields")
    try:
        found: datetime = next(CronSim(cron, after.astimezone(zone)))
    except CronSimError as error:
        raise InvalidCron(cron, str(error).lower()) from error
    except StopIteration:
        raise InvalidCron(cron, "its time never comes") from None
    return found


async def put_schedule(
    store: Store,
    flow: FlowSpec[..., Any],
    arguments: Arguments,
    *,
    name: str,
    cron: str,
    timezone: str,
    user: str,
    wall: datetime,
) -> ScheduleRecord:
    """Record a schedule, or replace the one of this name; see `Runtime.schedule`."""
    if not _NAME.fullmatch(name):
        rule = "up to 40 letters, digits, '.', '_' and '-', beginning with a letter or digit"
        raise InvalidQueueOption("schedule", name, rule)
    options = flow.queueing
    if options.not_before is not None or options.key is not None:
        given = "not_before" if options.key is None else "key"
        raise InvalidQueueOption(given, getattr(options, given), "none with a schedule")
    dumped = encoded(store.codec, arguments.dump(flow.body), JSON)
    async with store.transaction() as tx:
        now = await tx.now(wall)
        schedule = ScheduleRecord(
            name=name,
            cron=cron,
            timezone=timezone,
            next_at=next_time(cron, timezone, now),
            flow=flow.name,
            entry=reference_of(flow.body),
            arguments=dumped,
            queue=options.queue,
            rank=-options.priority,
            deadline_s=flow.deadline_s,
            max_attempts=options.max_attempts,
            retry_s=options.retry_s,
            slo_user=user if flow.user is None else flow.user,
            tags=dict(flow.tags),
        )
        await tx.schedules.put(schedule)
    return schedule


async def submit_scheduled(
    tx: Transaction,
    flows: Mapping[str, FlowSpec[..., Any]],
    versions: Mapping[str, str],
    *,
    queues: tuple[str, ...],
    wall: datetime,
) -> list[str]:
    """Submit the runs that are due by their schedules; each time once, whichever worker looks.

    Times that passed while no worker looked count as one. While the last run of a schedule waits or
    is in progress, there is no other one.

    Returns:
        The ids of the new runs.
    """
    now = await tx.now(wall)
    submitted = []
    for schedule in await tx.schedules.due(flows=list(flows), queues=queues, now=now):
        await tx.schedules.move(schedule.name, next_time(schedule.cron, schedule.timezone, now))
        flow = replace(
            flows[schedule.flow],
            run_id=f"{schedule.name}-{schedule.next_at:%Y%m%dT%H%M}",
            deadline_s=schedule.deadline_s,
            tags=schedule.tags,
            queueing=QueueOptions(
                queue=schedule.queue,
                priority=-schedule.rank,
                key=f"schedule {schedule.name}",
                max_attempts=schedule.max_attempts,
                retry_s=schedule.retry_s,
            ),
        )
        run = queued_record(
            flow, now=now, user=schedule.slo_user, code_version=versions[schedule.flow]
        )
        payload = await tx.payloads.put(schedule.arguments, media_type=JSON)
        try:
            added = await tx.waiting.add(replace(run, input_payload=payload))
        except QueueDraining as error:
            logger.warning("schedule %s: %s", schedule.name, error)
            continue
        if added.id == run.id:
            submitted.append(run.id)
        else:
            logger.warning("schedule %s: run %s is not over yet", schedule.name, added.id)
    return submitted

"""Submits runs to queues: recorded like any run, without a process until a worker claims them."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from orchestrator.durability.arguments import Arguments
from orchestrator.durability.user_data import UserData
from orchestrator.errors import InvalidSettings
from orchestrator.execution.flow_spec import FlowSpec
from orchestrator.learning.feasibility import Feasibility, check_feasible
from orchestrator.runtime.flow_loading import reference_of
from store.records import NEVER_DUE, RunRecord, Status

if TYPE_CHECKING:
    from patterns.library import PatternLibrary
    from store.session import Store


@dataclass(frozen=True, slots=True)
class Submitted:
    """A run that was submitted.

    Attributes:
        is_new: False: the queue had a run with the same key, and this is that one.
        num_ahead: waiting runs of the queue that were to be claimed before it.
        feasibility: what past runs said about its deadline, from their start: waiting comes on top.
    """

    run_id: str
    queue: str
    is_new: bool
    num_ahead: int
    feasibility: Feasibility


async def submit_run(
    store: Store,
    flow: FlowSpec[..., Any],
    arguments: Arguments,
    library: PatternLibrary,
    *,
    user: str,
    code_version: str,
    is_durable: bool,
    wall: datetime,
) -> Submitted:
    """Submit a run; `Runtime.submit` says what it raises.

    Args:
        user: of the run, unless its flow names one.
        wall: this machine's time, used where the database has no clock.
    """
    if not is_durable:
        raise InvalidSettings(
            "ORCHESTRATE_DURABLE: a run is submitted with its recorded arguments; set it to true"
        )
    dumped = arguments.dump(flow.body)
    feasibility = check_feasible(flow.name, flow.deadline_s, library, flow.infeasible)
    data = UserData(store, durable=True, record_text=False)
    async with store.transaction() as tx:
        now = await tx.now(wall)
        run = queued_record(
            flow, now=now, user=user if flow.user is None else flow.user, code_version=code_version
        )
        payload = await data.put_json(tx, dumped)
        added = await tx.waiting.add(replace(run, input_payload=payload))
        is_new = added.id == run.id
        num_ahead = await tx.waiting.num_ahead(added) if is_new else 0
    return Submitted(added.id, flow.queueing.queue, is_new, num_ahead, feasibility)


def queued_record(
    flow: FlowSpec[..., Any], *, now: datetime, user: str, code_version: str
) -> RunRecord:
    """The record of a run that waits; its time counts from now, or from when it may begin."""
    options = flow.queueing
    not_before = options.begins_at(now)
    begins = now if not_before is None else max(now, not_before)
    due_at = NEVER_DUE
    if flow.deadline_s is not None:
        due_at = begins + timedelta(seconds=flow.deadline_s)
    attributes: Mapping[str, object] = {"tags": dict(flow.tags)} if flow.tags else {}
    return RunRecord(
        id=flow.run_id or secrets.token_hex(6),
        flow=flow.name,
        started_at=begins,
        status=Status.QUEUED,
        deadline_s=flow.deadline_s,
        entry=reference_of(flow.body),
        attributes=attributes,
        slo_user=user,
        queue=options.queue,
        rank=-options.priority,
        due_at=due_at,
        not_before=not_before,
        dedup_key=options.key,
        max_attempts=options.max_attempts,
        retry_s=options.retry_s,
        code_version=code_version,
    )

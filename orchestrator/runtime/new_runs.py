"""A run as it begins, or is resumed: in memory and as its record."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import secrets
import socket
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from orchestrator.clock import RunClock
from orchestrator.durability.leases import LEASE_S
from orchestrator.durability.liveness import process_identity
from orchestrator.durability.recorder import RunRecorder
from orchestrator.events import Listener
from orchestrator.execution.context import EnvironmentsPlace, LiveRun, TraceHeaders
from orchestrator.execution.engines import DEFAULT, Engines
from orchestrator.execution.flow_spec import FlowSpec
from orchestrator.learning.stage_deadlines import StageDeadlines
from orchestrator.runtime.flow_loading import reference_of
from store.records import RunRecord

if TYPE_CHECKING:
    from orchestrator.learning.knowledge import Knowledge
    from store.session import Store

logger = logging.getLogger("orchestrate")


def new_live_run(
    flow: FlowSpec[..., Any],
    clock: RunClock,
    knowledge: Knowledge,
    *,
    age_s: float = 0.0,
    engines: Engines,
    store: Store,
    emit: Listener,
    durable: bool,
    record_text: bool,
    user: str,
    environments: EnvironmentsPlace | None,
    trace_headers: TraceHeaders,
) -> LiveRun:
    """A live run.

    Args:
        age_s: how long ago it began, by its clock.
        user: of the run, unless its flow names one.
    """
    run_id = flow.run_id or secrets.token_hex(6)
    started_s = clock.now_s() - age_s
    deadline_at_s = math.inf if flow.deadline_s is None else started_s + flow.deadline_s
    return LiveRun(
        id=run_id,
        flow=flow.name,
        engines=engines,
        recorder=RunRecorder(
            store,
            clock,
            run_id=run_id,
            started_s=started_s,
            durable=durable,
            record_text=record_text,
        ),
        clock=clock,
        emit=emit,
        started_s=started_s,
        deadline_at_s=deadline_at_s,
        stage_deadlines=StageDeadlines(
            deadline_at_s=deadline_at_s,
            expected_stages=flow.expected_stages,
            match=knowledge.library.matcher.begin() if knowledge.library else None,
        ),
        knowledge=knowledge,
        loop=asyncio.get_running_loop(),
        user=user if flow.user is None else flow.user,
        environments=environments,
        trace_headers=trace_headers,
    )


def new_run_record(
    live: LiveRun, flow: FlowSpec[..., Any], *, durable: bool, lease_s: float = LEASE_S
) -> RunRecord:
    """The record of a run that begins now; one that is not durable cannot be resumed."""
    info, now = live.engines.info(), live.clock.wall()
    attributes: dict[str, object] = {"tags": dict(flow.tags)} if flow.tags else {}
    if named := _named_engines(live.engines):
        attributes["engines"] = named
    return RunRecord(
        id=live.id,
        flow=live.flow,
        started_at=now,
        claimed_at=now,
        leased_until=now + timedelta(seconds=lease_s),
        deadline_s=flow.deadline_s,
        entry=reference_of(flow.body) if durable else None,
        engine=info.name,
        model=info.model,
        policy=info.policy,
        random_weights=info.random_weights,
        process_id=os.getpid(),
        host=socket.gethostname(),
        process=process_identity(),
        slo_user=live.user,
        attributes=attributes,
        clock_stopped_s=live.clock.stopped_s,
    )


def warn_of_other_engines(run: RunRecord, engines: Engines) -> None:
    """Log which engines of a run that is resumed are others than those on which it began."""
    info = engines.info()
    if (run.engine, run.model) != (info.name, info.model):
        logger.warning(
            "run %s began on engine %s with model %s, and continues on engine %s with model %s",
            *(run.id, run.engine, run.model, info.name, info.model),
        )
    began = run.attributes.get("engines")
    now = _named_engines(engines)
    for name, before in (began if isinstance(began, Mapping) else {}).items():
        if name not in now:
            logger.warning("run %s began with an engine %s, which is missing now", run.id, name)
        elif now[name] != before:
            logger.warning(
                "run %s began with %s as engine %s, and continues with %s",
                *(run.id, _shown(before), name, _shown(now[name])),
            )


def _named_engines(engines: Engines) -> dict[str, dict[str, str]]:
    """Name of each engine but the default one -> its kind and its model, as configured."""
    return {
        name: {"engine": engines.info(name).name, "model": engines.configured_model(name)}
        for name in engines
        if name != DEFAULT
    }


def _shown(engine: Mapping[str, str]) -> str:
    model = engine.get("model")
    return f"{engine.get('engine')} ({model})" if model else str(engine.get("engine"))

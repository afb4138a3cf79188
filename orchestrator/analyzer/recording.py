"""A program that has ended -> a run in the analyzer's store, with its pattern: no text of it."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from orchestrator.analyzer.programs import Program, ServedCall
from patterns.codec import CODEC_VERSION
from patterns.condensing import encode_within
from patterns.errors import PatternError
from serving.analyzer.calibration import BOUND_LEVEL
from store.errors import RunExists
from store.records import CallKind, CallRecord, PatternRecord, RunRecord, Status
from store.session import Store

logger = logging.getLogger("orchestrate")


def application_of(model: str) -> str:
    """The application under which a model's programs are recorded."""
    return f"served:{model}"


async def record(store: Store, program: Program, *, began_at: datetime) -> bool:
    """Record a program as a run that has ended; not one without a complete answer.

    Args:
        began_at: wall time of its first call.
    Returns:
        whether it has a pattern now; False too if a former analyzer recorded it.
    Raises:
        StoreError: the store cannot be written.
    """
    complete = program.complete_calls
    if not complete:
        return False
    elapsed_s = program.latest_s - program.began_s
    first = program.calls[0].arrival
    run = RunRecord(
        id=program.id,
        flow=application_of(first.model),
        started_at=began_at,
        status=Status.COMPLETED if len(complete) == len(program.calls) else Status.FAILED,
        deadline_s=_deadline_s(program),
        finished_at=began_at + timedelta(seconds=elapsed_s),
        elapsed_s=elapsed_s,
        model=first.model,
        slo_user=first.user,
    )
    pattern = _pattern(program, run)
    calls = [_call_record(program, node, call) for node, call in enumerate(complete)]
    try:
        async with store.transaction() as tx:
            await tx.runs.add(run)
            await tx.calls.add_all(calls, [])
            if pattern is not None:
                await tx.patterns.add(pattern)
    except RunExists:
        return False
    return pattern is not None


def _deadline_s(program: Program) -> float | None:
    return None if program.deadline_at_s is None else program.deadline_at_s - program.began_s


def _pattern(program: Program, run: RunRecord) -> PatternRecord | None:
    """None without a complete call, or if no pattern can represent it, which is logged."""
    try:
        graph = program.graph()
        if not graph.nodes:
            return None
        document = encode_within(graph.canonical())
    except PatternError as error:
        logger.warning("no pattern of program %s is recorded: %s", run.id, error)
        return None
    assert run.finished_at is not None
    return PatternRecord(
        application=run.flow,
        document=document,
        codec_version=CODEC_VERSION,
        created_at=run.finished_at,
        uses=1.0,
        run_id=run.id,
    )


def _call_record(program: Program, node: int, call: ServedCall) -> CallRecord:
    assert call.ended is not None
    sketch = None if call.estimate is None else call.estimate.sketch
    return CallRecord(
        run_id=program.id,
        node=node,
        kind=CallKind.LLM,
        identity=call.identity,
        step_path=call.arrival.shape,
        stage=2 * call.stage,
        started_s=call.arrival.at_s - program.began_s,
        status=Status.COMPLETED,
        finished_s=call.ended.at_s - program.began_s,
        prompt_tokens=call.ended.prompt_tokens,
        output_tokens=call.ended.output_tokens,
        features=None if call.features is None else call.features.encode(),
        length_bound=None if sketch is None else sketch.upper(BOUND_LEVEL),
        bound_source=None if call.estimate is None else call.estimate.source,
        model=call.arrival.model,
    )

"""Executes a run and records its end."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, TypeVar

from orchestrator.cancellation import end_all
from orchestrator.durability.arguments import Arguments
from orchestrator.durability.identity import StepPath
from orchestrator.durability.outcomes import status_of, type_of
from orchestrator.durability.values import result_codec
from orchestrator.errors import ResultNotSerialisable
from orchestrator.events import RunFinished, RunStarted
from orchestrator.execution.context import CallContext, LiveRun, current_worker, using_context
from orchestrator.execution.deadline_handling import run_by_deadline
from orchestrator.execution.flow_spec import FlowSpec
from orchestrator.execution.pattern_recording import pattern_record
from orchestrator.runtime.results import RunResult, stage_reports, usage_of
from store.records import Status

logger = logging.getLogger("orchestrate")

R = TypeVar("R")


async def execute_run(live: LiveRun, flow: FlowSpec[..., R], arguments: Arguments) -> RunResult[R]:
    """Execute a run and record its end, successful or not; its start is recorded already.

    Raises the same errors as `Runtime.run`.
    """
    error: BaseException | None = None
    result: bytes | None = None
    try:
        live.emit(RunStarted(live.id, live.flow, flow.deadline_s))
        context = CallContext(live, StepPath(), live.deadline_at_s, owner=current_worker())
        try:
            with using_context(context):
                value = await _run_body(context, flow, arguments)
        finally:
            await end_all(live.streams)
        if live.was_cancelled():  # and the flow caught it
            raise asyncio.CancelledError
        result = _dump_if_possible(flow, value)
    except BaseException as caught:
        error = caught
        raise
    finally:
        elapsed_s = live.since_start_s()
        ended_at = live.clock.wall()
        await live.recorder.run_ended(
            ended_at=ended_at,
            elapsed_s=elapsed_s,
            error=error,
            result=result,
            pattern=pattern_record(live, ended_at) if _is_learned_from(live, error) else None,
        )
        live.emit(RunFinished(live.id, str(status_of(error)), elapsed_s, error_type=type_of(error)))
    return RunResult(
        value=value,
        run_id=live.id,
        deadline_s=flow.deadline_s,
        elapsed_s=elapsed_s,
        stages=stage_reports(live),
        usage=usage_of(live.calls),
        log=live.log,
    )


def _is_learned_from(live: LiveRun, error: BaseException | None) -> bool:
    """Whether a run leaves a pattern: it ended as its flow says, or its deadline cut it off."""
    return error is None or (live.is_cut_off and status_of(error) is Status.FAILED)


def _dump_if_possible(flow: FlowSpec[..., Any], value: Any) -> bytes | None:
    """A run's result as recorded; None if it cannot be: the caller gets it nevertheless."""
    try:
        return result_codec(flow.body, f"flow {flow.name}").dump(value)
    except ResultNotSerialisable as error:
        logger.warning("the run's result is returned, but not recorded: %s", error)
        return None


async def _run_body(context: CallContext, flow: FlowSpec[..., R], arguments: Arguments) -> R:
    async def work() -> R:
        value = await flow.body(*arguments.args, **arguments.kwargs)
        # Here, as a flow that its deadline cuts off need not have begun all recorded steps.
        context.run.recorded_steps.require_no_more(context.step_path)
        return value

    if flow.deadline_s is None:
        return await work()

    def expired() -> None:
        context.run.is_cut_off = True

    return await run_by_deadline(
        context, flow.name, flow.deadline_s, flow.deadline_handling, work, expired
    )

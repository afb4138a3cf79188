"""Values that are computed once and repeated in a resumed run, such as a time or a count."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from orchestrator.durability.identity import GATHER
from orchestrator.durability.values import ValueCodec
from orchestrator.execution.context import CallContext
from orchestrator.execution.step_execution import enter_task
from store.records import Status, StepKind, StepRecord

R = TypeVar("R")

_COUNT = ValueCodec("a number of branches", int)


def record_value(context: CallContext, name: str, codec: ValueCodec, make: Callable[[], R]) -> R:
    """A value that `make` computes once and that replays return; for values such as the time."""
    run = context.run
    _, context = enter_task(context, name, None)
    step_path = context.step_path.enter(name)
    past = run.recorded_steps.find(step_path, StepKind.VALUE)
    recorded = None if past is None else run.recorder.data.result_of_value(past)
    if recorded is not None:
        value: R = codec.load(recorded)
        return value
    result, value = codec.round_trip(make())
    now_s = run.since_start_s()
    run.recorder.value_recorded(
        StepRecord(
            run_id=run.id,
            path=step_path.text,
            name=name,
            started_s=now_s,
            kind=StepKind.VALUE,
            place=step_path.place,
            status=Status.COMPLETED,
            finished_s=now_s,
            result=result,
        )
    )
    return value


def begin_gather(context: CallContext, num_branches: int) -> CallContext:
    """Record a gather, and return the context from which its branches are derived.

    Raises:
        FlowChanged: another step, or a gather with another number of branches, is recorded here.
    """
    name = f"{GATHER}{num_branches}"
    _, context = enter_task(context, name, None)
    record_value(context, name, _COUNT, lambda: num_branches)
    return context

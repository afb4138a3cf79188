"""A question to a human, answered from outside: `orchestrate answer RUN`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, overload

from orchestrator.context import LiveRun, current
from orchestrator.events import InputRequired
from orchestrator.once import Known, StepSpec, entered
from orchestrator.values import ValueCodec
from store.errors import AlreadyRecorded
from store.records import Status, StepKind, StepRecord

T = TypeVar("T")

POLL_S = 0.5
"""How often a waiting run looks for its answer."""


@overload
async def input_required(question: str) -> str: ...


@overload
async def input_required(question: str, *, schema: type[T]) -> T: ...


async def input_required(question: str, *, schema: Any = str) -> Any:
    """Wait for a human's answer, for as long as the deadline here allows.

    The question is shown by `orchestrate answer RUN` and answered by adding TEXT to that, by
    another process than this one. A run that ends meanwhile is resumed with the answer.

    Args:
        schema: the answer's type, anything that pydantic reads from JSON.
    Raises:
        ResultUnreadable: the answer is none of that type.
        DeadlineExceeded: nobody answered in time.
        OutsideRun: not within a flow.
    """
    position = current("input_required()")
    run = position.run
    codec = ValueCodec("input_required()", schema)
    came = await entered(position, StepSpec("input", StepKind.INPUT, codec))
    if isinstance(came, Known):
        return came.value
    path = came.step.path
    step = replace(came.step, name=question)
    answered = await run.recorder.question_asked(step, again=came.again)
    if answered is None:
        run.emit(InputRequired(run.id, path, question, run.since_start_s()))
        answered = await _answered(run, path)
    return codec.load(await run.recorder.result_of(answered) or b"null")


async def _answered(run: LiveRun, path: str) -> StepRecord:
    """A question that waits, once it has its answer."""
    try:
        while True:
            step = await run.recorder.step(path)
            if step.status is Status.COMPLETED:
                return step
            await asyncio.sleep(POLL_S)
    except asyncio.CancelledError as cancelled:
        with suppress(AlreadyRecorded):  # the answer came since we looked: a resumed run has it
            await run.recorder.step_ended(path, cancelled)
        raise

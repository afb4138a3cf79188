"""A question to a human, answered from outside: `orchestrate answer RUN`."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from orchestrator.durability.digests import digest_of
from orchestrator.durability.values import ValueCodec
from orchestrator.errors import ResultUnreadable
from orchestrator.events import InputRequired
from orchestrator.execution.context import LiveRun, current_context
from orchestrator.execution.step_execution import Replayed, StepSpec, begin_or_replay
from store.errors import AlreadyRecorded
from store.records import Status, StepKind, StepRecord

T = TypeVar("T")

POLL_S = 0.5
"""How often a waiting run looks for its answer."""

NOT_TAKEN = " (the last answer was not taken: "
"""Between a question that is asked again and the reason, and a parenthesis ends it."""

_MOST_REASONS = 3  # why an answer does not fit, beside the question


@overload
async def input_required(question: str) -> str: ...


@overload
async def input_required(question: str, *, schema: type[T]) -> T: ...


async def input_required(question: str, *, schema: Any = str) -> Any:
    """Wait for a human's answer, for as long as the deadline here allows.

    The question is shown by `orchestrate answer RUN` and answered by adding TEXT to that, by
    another process than this one. A run that ends meanwhile is resumed with the answer. One that
    does not fit is not taken: the question is asked again, and says why.

    Args:
        schema: the answer's type, anything that pydantic reads. For str the text is the answer;
            for any other type it is read as JSON or, where that does not fit, as a string.
    Raises:
        ResultNotSerialisable: the schema is none that pydantic reads.
        DeadlineExceeded: nobody answered in time.
        OutsideRun: not within a flow.
    """
    context = current_context("input_required()")
    run, answers = context.run, _AnswerCodec(schema)
    spec = StepSpec(
        "input", StepKind.INPUT, _AsRecorded("an answer"), arguments=digest_of(question)
    )
    came = await begin_or_replay(context, spec)
    if isinstance(came, Replayed):
        assert came.step is not None
        step, answer = came.step, came.value
    else:
        step = replace(came.step, name=question)
        answer = await _asked(run, step, again=came.again)
    while True:
        try:
            return answers.load(answer)
        except ResultUnreadable as error:
            told = f"{question}{NOT_TAKEN}{error.args[1]})"
        step = replace(
            step,
            name=told,
            status=Status.RUNNING,
            finished_s=None,
            result=None,
            result_payload=None,
        )
        answer = await _asked(run, step, again=True, refused=True)


class _AsRecorded(ValueCodec):
    """Leaves an answer as it is recorded: one that does not fit is no error of the run."""

    def load(self, data: bytes) -> bytes:
        return data


class _AnswerCodec(ValueCodec):
    """Reads what a human typed, which is recorded as a JSON string; other JSON is taken as such.

    Raises:
        ResultNotSerialisable: the schema is none that pydantic reads.
    """

    def __init__(self, schema: Any) -> None:
        super().__init__("an answer", schema)
        self._known()  # before anybody is asked
        self._is_text = schema is str or getattr(schema, "__origin__", None) is str

    def load(self, data: bytes) -> Any:
        """The value that an answer means; raises ResultUnreadable, with a reason for humans."""
        try:
            typed = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ResultUnreadable("an answer", str(error)) from error
        if self._is_text or not isinstance(typed, str):
            return self._loaded(data)
        try:
            return self._loaded(typed.encode(errors="replace"))
        except ResultUnreadable as as_json:
            try:
                return self._loaded(data)
            except ResultUnreadable:
                if _is_meant_as_json(typed):
                    raise as_json from None
                raise

    def _loaded(self, data: bytes) -> Any:
        try:
            return super().load(data)
        except ResultUnreadable as error:
            raise ResultUnreadable("an answer", _reason(error)) from error
        except Exception as error:  # of a validator of the schema's own
            raise ResultUnreadable("an answer", f"{type(error).__name__}: {error}") from error


async def _asked(run: LiveRun, step: StepRecord, *, again: bool, refused: bool = False) -> bytes:
    """What is recorded as the answer to a question, once there is one.

    Args:
        again: whether it was asked before.
        refused: whether it has an answer already, which was not taken.
    """
    answered = await run.recorder.question_asked(step, again=again, refused=refused)
    if answered is None:
        run.emit(InputRequired(run.id, step.path, step.name, run.since_start_s()))
        answered = await _answered(run, step.path)
    return await run.recorder.result_of(answered) or b"null"


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


def _is_meant_as_json(typed: str) -> bool:
    """Whether what is wrong with it as JSON says more than what is wrong with it as a string."""
    try:
        json.loads(typed)
    except (ValueError, RecursionError):
        return typed.lstrip().startswith(("{", "["))
    return True


def _reason(error: ResultUnreadable) -> str:
    """Why a value does not fit, without the value."""
    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return str(error.args[1])
    found = cause.errors(include_url=False, include_context=False, include_input=False)
    told = [": ".join([*map(str, each["loc"]), each["msg"]]) for each in found[:_MOST_REASONS]]
    return "; ".join(told)

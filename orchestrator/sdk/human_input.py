"""input_required: a question to a human, answered by `orchestrate answer` or Runtime.answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any, TypeVar, overload

from pydantic import ValidationError

from orchestrator.durability.answer_schema import answer_schema
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
"""Seconds between a waiting run's checks for its answer."""

NOT_TAKEN = " (the last answer was not taken: "
"""Follows a question that is asked again; the reason and a closing parenthesis come after it."""

_MAX_REASONS = 3  # validation errors shown with a question that is asked again


@overload
async def input_required(question: str, *, stops_clock: bool = False) -> str: ...


@overload
async def input_required(question: str, *, schema: type[T], stops_clock: bool = False) -> T: ...


@overload
async def input_required(question: str, *, schema: object, stops_clock: bool = False) -> Any: ...


async def input_required(question: str, *, schema: Any = str, stops_clock: bool = False) -> Any:
    """Wait for a human's answer, until the current deadline.

    `orchestrate answer RUN` shows the question, and `orchestrate answer RUN TEXT` or
    `Runtime.answer` answers it, in any process. If the run's process has ended meanwhile, the run
    can be resumed, and gets the answer then. An answer that does not fit the JSON schema of the
    type is refused when it is given; if one does not fit for another reason, the question is asked
    again together with that. An answer can be replaced until the flow has read it.

    Args:
        schema: the answer's type, anything that pydantic validates. For str the text itself is the
            answer; for any other type the text is read as JSON or, if that does not fit, as a
            string.
        stops_clock: the time until the flow has the answer counts neither against the run's
            deadline nor against any other limit in the run, also if its process dies meanwhile.
            Parallel branches go on, and their time does not count either.
    Raises:
        ResultNotSerialisable: pydantic does not support the schema.
        TypeError: it is a JSON schema.
        DeadlineExceeded: no answer arrived in time.
        OutsideRun: not within a flow.
    """
    context = current_context("input_required()")
    run, answers = context.run, _AnswerCodec(schema)
    codec = _RawCodec("an answer")
    spec = StepSpec("input", StepKind.INPUT, codec, arguments=digest_of(question))
    step = await begin_or_replay(context, spec)
    if isinstance(step, Replayed):
        assert step.record is not None
        record, answer = step.record, step.value
    else:
        record = replace(
            step.record, name=question, answer_schema=answers.json_schema(), stops_clock=stops_clock
        )
        answer = await _ask(run, record, began_before=step.began_before)
    while True:
        try:
            return answers.load(answer)
        except ResultUnreadable as error:
            question_with_reason = f"{question}{NOT_TAKEN}{error.args[1]})"
        record = replace(
            record,
            name=question_with_reason,
            status=Status.RUNNING,
            finished_s=None,
            result=None,
            result_payload=None,
            outcome_number=None,
        )
        answer = await _ask(run, record, began_before=True, refused=True)


class _RawCodec(ValueCodec):
    """Returns an answer as recorded: one that does not fit is asked for again, and is no error."""

    def load(self, data: bytes) -> bytes:
        return data


class _AnswerCodec(ValueCodec):
    """Reads a human's answer, which is recorded as a JSON string of the typed text.

    A recorded answer that is other JSON than a string is validated directly.

    Raises:
        ResultNotSerialisable: pydantic does not support the schema.
    """

    def __init__(self, schema: Any) -> None:
        if isinstance(schema, Mapping):
            raise TypeError("schema= is a JSON schema: give a type that pydantic reads, like int")
        super().__init__("an answer", schema)
        self.require_supported_type()  # before the question is asked
        self._schema = schema
        self._is_text = schema is str or getattr(schema, "__origin__", None) is str

    def json_schema(self) -> dict[str, Any] | None:
        """The JSON schema of the answers; None if there is none that says what fits."""
        return answer_schema(self._schema)

    def load(self, data: bytes) -> Any:
        """The value of an answer; raises ResultUnreadable, with a reason for the human."""
        try:
            typed = json.loads(data)
        except (ValueError, RecursionError) as error:
            raise ResultUnreadable("an answer", str(error)) from error
        if self._is_text or not isinstance(typed, str):
            return self._validate(data)
        try:
            return self._validate(typed.encode(errors="replace"))
        except ResultUnreadable as json_error:
            try:
                return self._validate(data)
            except ResultUnreadable:
                if _looks_like_json(typed):
                    raise json_error from None
                raise

    def _validate(self, data: bytes) -> Any:
        try:
            return super().load(data)
        except ResultUnreadable as error:
            raise ResultUnreadable("an answer", _reason(error)) from error
        except Exception as error:  # raised by a custom validator of the schema
            raise ResultUnreadable("an answer", f"{type(error).__name__}: {error}") from error


async def _ask(
    run: LiveRun, step: StepRecord, *, began_before: bool, refused: bool = False
) -> bytes:
    """Ask a question, and wait for the recorded answer.

    Args:
        began_before: whether the question is recorded already.
        refused: whether it has an answer that did not fit.
    """
    recorder = run.recorder
    answered = await recorder.question_asked(step, began_before=began_before, refused=refused)
    if answered is None:
        run.emit(InputRequired(run.id, step.path, step.name, run.since_start_s()))
        with run.clock.stopped() if step.stops_clock else nullcontext():
            answered = await _wait_for_answer(run, step)
    answered = await recorder.answer_received(answered)
    return await recorder.data.result_of(answered) or b"null"


async def _wait_for_answer(run: LiveRun, question: StepRecord) -> StepRecord:
    """The step of a waiting question, once it has its answer."""
    try:
        while True:
            step = await run.recorder.step(question.path)
            if step.status is Status.COMPLETED:
                return step
            await asyncio.sleep(POLL_S)
    except asyncio.CancelledError as cancelled:
        with suppress(AlreadyRecorded):  # it was answered since the last check; a resume finds that
            await run.recorder.step_ended(question, cancelled)
        raise


def _looks_like_json(typed: str) -> bool:
    """Whether the validation error of the text as JSON is more helpful than that as a string."""
    try:
        json.loads(typed)
    except (ValueError, RecursionError):
        return typed.lstrip().startswith(("{", "["))
    return True


def _reason(error: ResultUnreadable) -> str:
    """Why a value does not fit, without quoting the value."""
    cause = error.__cause__
    if not isinstance(cause, ValidationError):
        return str(error.args[1])
    errors = cause.errors(include_url=False, include_context=False, include_input=False)
    reasons = [": ".join([*map(str, each["loc"]), each["msg"]]) for each in errors[:_MAX_REASONS]]
    return "; ".join(reasons)

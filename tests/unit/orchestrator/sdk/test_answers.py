"""Answers that humans type: read as the requested type, or refused and asked for again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BeforeValidator, Field

from orchestrator import (
    ResultNotSerialisable,
    flow,
    input_required,
)
from orchestrator.events import Event, InputRequired
from tests.strategies import examples
from tests.unit.orchestrator.orchestrator_samples import law, recorded
from tests.unit.orchestrator.sdk.human_input_samples import (
    ID,
    answer,
    answer_ended_run,
    questions_of,
    repeated_question,
)
from tests.unit.orchestrator.virtual_time import run_in_virtual_time, timed_runtime


@dataclass(frozen=True)
class Approval:
    approved: bool
    limit: int


class Choice(StrEnum):
    ONE = "one"
    TWO = "2"


class Opaque:
    """A class that pydantic does not support."""


def _picky(value: object) -> object:
    raise KeyError(value)


Picky = Annotated[int, BeforeValidator(_picky)]


@pytest.mark.parametrize(
    ("schema", "given_", "expected"),
    [
        (bool, True, True),
        (int, 7, 7),
        (list[str], ["a"], ["a"]),
        (Approval, {"approved": True, "limit": 3}, Approval(approved=True, limit=3)),
        (str, "ünïcode", "ünïcode"),
    ],
)
def test_an_answer_in_json_has_the_requested_type(
    tmp_path: Path, schema: Any, given_: object, expected: object
) -> None:
    results: list[object] = []

    @flow
    async def body() -> None:
        results.append(await input_required("well?", schema=schema))

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            [question] = await questions_of(runtime.store)
            await answer(runtime.store, question.path, given_)
            await running
            await runtime.resume(ID, body)

    run_in_virtual_time(run())
    assert results == [expected]


@pytest.mark.parametrize(
    ("schema", "typed", "expected"),
    [
        (str, "42", "42"),
        (str, '"quoted"', '"quoted"'),
        (str, "null", "null"),
        (str, "", ""),
        (Annotated[str, Field(min_length=1)], "7", "7"),
        (int, "42", 42),
        (int | str, "42", 42),
        (bool, "true", True),
        (bool, "yes", True),
        (str | None, "null", None),
        (str | None, "42", "42"),
        (Choice, "one", Choice.ONE),
        (Choice, "2", Choice.TWO),
        (list[str], '["a", "b"]', ["a", "b"]),
        (Any, "not JSON", "not JSON"),
        (Approval, '{"approved": true, "limit": 3}', Approval(approved=True, limit=3)),
        (date, "2026-03-01", date(2026, 3, 1)),
    ],
)
def test_typed_text_is_read_as_the_requested_type(
    tmp_path: Path, schema: Any, typed: str, expected: object
) -> None:
    results: list[object] = []

    @flow
    async def body() -> None:
        results.append(await input_required("well?", schema=schema))

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            [question] = await questions_of(runtime.store)
            await answer(runtime.store, question.path, typed)
            async with asyncio.timeout(100):
                await running

    run_in_virtual_time(run())
    assert results == [expected]


@settings(law, max_examples=examples(25))
@given(typed=st.text())
def test_a_requested_text_is_the_typed_text(typed: str) -> None:
    @flow
    async def body() -> str:
        return await input_required("well?")

    async def run() -> None:
        with TemporaryDirectory() as folder:
            async with timed_runtime(Path(folder)) as runtime:
                running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
                [question] = await questions_of(runtime.store)
                await answer(runtime.store, question.path, typed)
                assert (await running).value == typed

    run_in_virtual_time(run())


@pytest.mark.parametrize(
    ("schema", "typed", "why"),
    [
        (int, "many", "valid integer"),
        (int, "[1]", "valid integer"),
        (Approval, '{"approved": true}', "limit: Field required"),
        (Approval, '{"approved": tru', "Invalid JSON"),
        (Approval, "yes", "Input should be"),
        (Picky, "anything", "KeyError"),
        (list[int], "[" * 5000, "JSON"),
    ],
)
def test_an_answer_that_does_not_fit_is_asked_for_again_with_the_reason(
    tmp_path: Path, schema: Any, typed: str, why: str
) -> None:
    @flow
    async def body() -> None:
        await input_required("well?", schema=schema)

    async def run() -> None:
        events: list[Event] = []
        async with timed_runtime(tmp_path, on_event=events.append) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            [question] = await questions_of(runtime.store)
            await answer(runtime.store, question.path, typed)
            again = await repeated_question(runtime.store, 2)
            assert again.name.startswith("well? (the last answer was not taken: ")
            assert why in again.name
            assert (again.path, again.place, again.started_s, again.result) == (
                question.path,
                question.place,
                question.started_s,
                None,
            )
            assert not running.done()
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
        questions = [event.question for event in events if isinstance(event, InputRequired)]
        assert questions == ["well?", again.name]

    run_in_virtual_time(run())


def test_a_question_is_asked_until_an_answer_fits(tmp_path: Path) -> None:
    @flow
    async def body() -> int:
        return await input_required("how many?", schema=int)

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            for attempts, typed in [(1, "many"), (2, "a few"), (3, "7")]:
                question = await repeated_question(runtime.store, attempts)
                await answer(runtime.store, question.path, typed)
            assert (await running).value == 7
            assert (await runtime.resume(ID, body)).value == 7

    run_in_virtual_time(run())


@pytest.mark.parametrize("typed", ["many", "7"])
def test_an_answer_to_a_run_that_has_ended_is_read_when_the_run_is_resumed(
    tmp_path: Path, typed: str
) -> None:
    @flow
    async def body() -> int:
        return await input_required("how many?", schema=int)

    async def run() -> None:
        events: list[Event] = []
        async with timed_runtime(tmp_path, on_event=events.append) as runtime:
            running = asyncio.create_task(runtime.run(body.options(run_id=ID)))
            [question] = await questions_of(runtime.store)
            running.cancel()
            with pytest.raises(asyncio.CancelledError):
                await running
            await answer_ended_run(runtime.store, question.path, typed)
            events.clear()
            resumed = asyncio.create_task(runtime.resume(ID, body))
            if typed == "many":
                again = await repeated_question(runtime.store, 3)
                assert "how many? (the last answer was not taken: " in again.name
                await answer(runtime.store, again.path, "7")
            assert (await resumed).value == 7
            assert (await recorded(runtime.store, ID)).still_running() == []
        questions = [event for event in events if isinstance(event, InputRequired)]
        assert len(questions) == (typed == "many")

    run_in_virtual_time(run())


def test_an_unsupported_type_is_refused_before_the_question_is_asked(
    tmp_path: Path,
) -> None:
    @flow
    async def body() -> None:
        await input_required("well?", schema=Opaque)

    async def run() -> None:
        async with timed_runtime(tmp_path) as runtime:
            with pytest.raises(ResultNotSerialisable):
                await runtime.run(body.options(run_id=ID))
            assert (await recorded(runtime.store, ID)).journal == {}

    run_in_virtual_time(run())

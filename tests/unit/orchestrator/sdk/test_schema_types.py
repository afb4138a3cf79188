"""llm with schema: any type that pydantic reads, on an engine that knows only JSON objects."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema
import pytest
from pydantic import BaseModel, Field, RootModel, WithJsonSchema
from typing_extensions import TypedDict

from orchestrator import Answer, flow, llm
from orchestrator.sdk.schemas import AnswerForm
from orchestrator.testing import ScriptedEngine
from serving.errors import InvalidRequest, StructuredOutputInvalid
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime
from tests.unit.orchestrator.run_samples import ID


@dataclass
class City:
    name: str
    founded: date


class Route(TypedDict):
    stops: list[City]


class Node(BaseModel):
    children: list[Node] = []


class Numbers(RootModel[list[int]]):
    """A model that is no JSON object."""


class Unreadable:
    """A class that pydantic does not know."""


class Broken:
    """A class whose own hook fails."""

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: Any) -> Any:
        raise RuntimeError("out of order")


MEMBERS = [
    (list[int], [1, 2], [1, 2]),
    (int, 7, 7),
    (str, "so", "so"),
    (Literal["yes", "no"], "no", "no"),
    (int | None, None, None),
    (City | Route, {"name": "Rom", "founded": "1000-04-21"}, City("Rom", date(1000, 4, 21))),
    (tuple[int, str], [1, "a"], (1, "a")),
    (set[int], [1, 2], {1, 2}),
    (list[City], [{"name": "R", "founded": "1000-04-21"}], [City("R", date(1000, 4, 21))]),
    (Annotated[int, Field(ge=1, le=5)], 3, 3),
    (Numbers, [1], Numbers([1])),
]
OBJECTS = [
    (City, {"name": "Rom", "founded": "1000-04-21"}, City("Rom", date(1000, 4, 21))),
    (Route, {"stops": []}, {"stops": []}),
    (dict[str, int], {"a": 1}, {"a": 1}),
    (Node, {"children": [{"children": []}]}, Node(children=[Node()])),
]


async def answer_of(folder: Path, answer: object, schema: Any, **more: Any) -> Any:
    """What llm() returns for an answer in JSON, and the schema that the engine got."""
    engine = ScriptedEngine(lambda _: json.dumps(answer))
    found: list[Any] = []

    @flow
    async def asking() -> None:
        found.append(await llm("Where?", schema=schema, **more))

    async with scripted_runtime(folder, engine) as runtime:
        await runtime.run(asking)
    return found[0], engine.requests[0].schema


@pytest.mark.parametrize(("shape", "written", "value"), MEMBERS, ids=lambda each: str(each)[:30])
async def test_what_is_no_object_is_asked_for_as_the_member_of_one(
    tmp_path: Path, shape: Any, written: Any, value: Any
) -> None:
    got, schema = await answer_of(tmp_path, {"value": written}, shape)
    assert got == value
    assert type(got) is type(value)
    assert (schema["type"], schema["required"]) == ("object", ["value"])
    assert schema["additionalProperties"] is False
    jsonschema.validate({"value": written}, schema)  # its references lead somewhere


@pytest.mark.parametrize(("shape", "written", "value"), OBJECTS, ids=lambda each: str(each)[:30])
async def test_an_object_is_asked_for_as_it_is(
    tmp_path: Path, shape: Any, written: Any, value: Any
) -> None:
    got, schema = await answer_of(tmp_path, written, shape)
    assert got == value
    assert type(got) is type(value)
    assert "value" not in schema.get("properties", {})
    jsonschema.validate(written, schema)


async def test_with_logprobs_and_n_the_values_have_the_type(tmp_path: Path) -> None:
    answers, _ = await answer_of(tmp_path, {"value": [1]}, list[int], logprobs=0, n=2)
    assert [answer.value for answer in answers] == [[1], [1]]
    assert all(isinstance(answer, Answer) for answer in answers)
    assert answers[0].text == '{"value": [1]}'


@pytest.mark.parametrize("written", [{"value": "seven"}, {}, [7], 7], ids=repr)
async def test_an_answer_of_another_type_is_invalid(tmp_path: Path, written: Any) -> None:
    with pytest.raises(StructuredOutputInvalid):
        await answer_of(tmp_path, written, int)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (Unreadable, "Unreadable"),
        (list[Unreadable], "Unreadable"),
        (Broken, "out of order"),
        (5, "5"),
        ("int", "not its name"),
        (type(lambda: 0), "JSON"),
    ],
    ids=str,
)
async def test_what_pydantic_cannot_read_is_refused_before_the_engine_is_asked(
    tmp_path: Path, shape: Any, reason: str
) -> None:
    engine = ScriptedEngine(lambda _: "{}")

    @flow
    async def asking() -> None:
        await llm("Where?", schema=shape)

    async with scripted_runtime(tmp_path, engine) as runtime:
        with pytest.raises(InvalidRequest, match=reason) as refused:
            await runtime.run(asking)
    assert "schema=" in str(refused.value)
    assert engine.requests == []


async def test_a_resumed_run_reads_the_recorded_answer_with_its_type(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda _: '{"value": [{"name": "Rom", "founded": "1000-04-21"}]}')
    raise_once, seen = RaiseOnce(), list[list[City]]()

    @flow
    async def interrupted() -> None:
        seen.append(await llm("Where?", schema=list[City]))
        raise_once()

    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, interrupted)
        await runtime.resume(ID, interrupted)
    assert seen == [[City("Rom", date(1000, 4, 21))]] * 2
    assert len(engine.requests) == 1


@dataclass
class Odd:
    """Its members have the names of keywords, and values that a grammar cannot hold."""

    pattern: Annotated[str, WithJsonSchema({"type": "string", "pattern": "^(?!no).*$"})]
    format: Path
    uniqueItems: set[date]  # noqa: N815 - the keyword's name


def test_what_constrained_decoding_cannot_enforce_is_left_to_the_reader() -> None:
    form = AnswerForm.of(Odd)
    assert form.schema["properties"] == {
        "pattern": {"type": "string", "title": "Pattern"},
        "format": {"type": "string", "title": "Format"},
        "uniqueItems": {
            "type": "array",
            "items": {"type": "string", "format": "date"},
            "title": "Uniqueitems",
        },
    }

"""Tools and structured output of ChatOrchestrate: the schema sent, and how answers are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

import jsonschema
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.tools import tool
from pydantic import BaseModel

from orchestrator import Message
from orchestrator.chat_model import ChatOrchestrate
from orchestrator.testing import ScriptedEngine
from serving.errors import InvalidRequest, StructuredOutputInvalid
from serving.schema_bound import AnswerText, protocol_of
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime


class Verdict(BaseModel):
    good: bool
    why: str


class Place(TypedDict):
    """A place."""

    city: str


PLACE_SCHEMA = {
    "title": "place",
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


@tool
def clock(zone: str = "utc") -> str:
    """The current time."""
    return "noon"


def answering(text: str) -> ScriptedEngine:
    return ScriptedEngine(lambda _: text)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_tool_call_is_read_from_json_that_the_schema_enforces(
    tmp_path: Path, streams: bool
) -> None:
    engine = answering('{"tool": "weather", "arguments": {"city": "Bern"}}')
    model = ChatOrchestrate().bind_tools([weather, clock])
    async with scripted_runtime(tmp_path, engine):
        message = await _reply(model, streams)
    [call] = message.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Bern"})
    assert call["id"]
    assert message.text == ""
    [request] = engine.requests
    assert request.schema is not None
    answer, first, second = request.schema["anyOf"]
    assert list(answer["properties"]) == ["answer"]
    assert first["properties"]["tool"] == {"enum": ["weather"]}
    assert second["properties"]["tool"] == {"enum": ["clock"]}
    instructions = request.prompt[0]
    assert isinstance(instructions, Message)
    assert instructions.role == "system"
    assert "The weather in a city." in instructions.content


@pytest.mark.parametrize("streams", [False, True])
async def test_a_model_with_tools_may_answer_without_calling_one(
    tmp_path: Path, streams: bool
) -> None:
    text = 'it "rains"\nin Zürich \U0001f327'
    engine = answering(json.dumps({"answer": text}))
    async with scripted_runtime(tmp_path, engine):
        message = await _reply(ChatOrchestrate().bind_tools([weather]), streams)
    assert message.text == text
    assert message.tool_calls == []


@pytest.mark.parametrize(
    ("choice", "shapes"),
    [
        (None, ["answer", "weather", "clock"]),
        ("auto", ["answer", "weather", "clock"]),
        ("any", ["weather", "clock"]),
        ("required", ["weather", "clock"]),
        ("clock", ["clock"]),
        ({"type": "function", "function": {"name": "clock"}}, ["clock"]),
        ("none", []),
    ],
)
async def test_tool_choice_restricts_the_schema_of_the_reply(
    tmp_path: Path, choice: Any, shapes: list[str]
) -> None:
    engine = answering('{"tool": "clock", "arguments": {}}')
    async with scripted_runtime(tmp_path, engine):
        await ChatOrchestrate().bind_tools([weather, clock], tool_choice=choice).ainvoke("hi")
    schema: Any = engine.requests[0].schema or {"anyOf": []}
    allowed = [
        shape["properties"].get("tool", {"enum": ["answer"]})["enum"][0]
        for shape in schema.get("anyOf", [schema])
    ]
    assert allowed == shapes


def test_an_unknown_tool_choice_or_a_tool_that_is_not_a_function_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="hammer"):
        ChatOrchestrate().bind_tools([weather], tool_choice="hammer")
    with pytest.raises(InvalidRequest, match="web_search"):
        ChatOrchestrate().bind_tools([{"type": "web_search_preview"}])


def raw_tool(name: str, **parameters: Any) -> dict[str, Any]:
    """A tool in OpenAI's format, as an MCP server describes it."""
    return {"type": "function", "function": {"name": name, "parameters": parameters}}


REFERRING = [
    raw_tool(
        "visit",
        type="object",
        properties={
            "place": {"$ref": "#/$defs/Place"},
            "default": {"$ref": "#/properties/place"},
            "$ref": {"type": "string", "default": {"$ref": "#/a text"}},
        },
        required=["place"],
        **{"$defs": {"Place": {"enum": ["Bern"]}}},
    ),
    raw_tool(
        "sort",
        type="object",
        properties={"place": {"$ref": "#/definitions/Place"}, "then": {"$ref": "#"}},
        required=["place"],
        definitions={"Place": {"enum": ["Rome"]}},
    ),
    raw_tool("wait", type="object", properties={"s": {"type": "integer"}}, required=["s"]),
]


@pytest.mark.parametrize(
    ("tool_name", "arguments", "is_valid"),
    [
        ("visit", {"place": "Bern"}, True),
        ("visit", {"place": "Rome"}, False),
        ("visit", {"place": "Bern", "default": "Bern", "$ref": "a"}, True),
        ("visit", {"place": "Bern", "default": "Rome"}, False),
        ("sort", {"place": "Rome", "then": {"place": "Rome"}}, True),
        ("sort", {"place": "Rome", "then": {"place": "Bern"}}, False),
        ("wait", {"s": 1}, True),
        ("wait", {"s": "long"}, False),
    ],
)
@pytest.mark.parametrize("choice", [None, "any", "itself"])
def test_a_tool_may_refer_to_definitions_of_its_own(
    tool_name: str, arguments: Any, is_valid: bool, choice: str | None
) -> None:
    protocol = protocol_of(REFERRING, tool_name if choice == "itself" else choice)
    assert protocol is not None
    reply = jsonschema.Draft202012Validator(protocol.schema())
    assert reply.is_valid({"tool": tool_name, "arguments": arguments}) == is_valid


async def test_a_tool_call_that_was_cut_off_is_an_invalid_tool_call(
    tmp_path: Path,
) -> None:
    model = ChatOrchestrate().bind_tools([weather])
    async with scripted_runtime(tmp_path, answering('{"tool": "weather", "arguments": {"ci')):
        message = await model.ainvoke("hi")
        assert isinstance(message, AIMessage)
    [call] = message.invalid_tool_calls
    assert call["name"] == "weather"
    assert message.tool_calls == []


@pytest.mark.parametrize("streams", [False, True])
async def test_a_reply_that_is_not_json_is_taken_as_the_answer(
    tmp_path: Path, streams: bool
) -> None:
    async with scripted_runtime(tmp_path, answering("I would say rain")):
        message = await _reply(ChatOrchestrate().bind_tools([weather]), streams)
    assert message.text == "I would say rain"


async def test_an_answer_that_was_cut_off_is_kept(tmp_path: Path) -> None:
    model = ChatOrchestrate().bind_tools([weather])
    async with scripted_runtime(tmp_path, answering('{"answer": "it will')):
        assert (await model.ainvoke("hi")).text == "it will"


@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_streamed_answer_is_decoded_whatever_the_size_of_its_pieces(size: int) -> None:
    text = 'a "quote", a \\ and\ta \U0001f327 in Zürich'
    document = json.dumps({"answer": text})
    answer = AnswerText()
    pieces = [document[at : at + size] for at in range(0, len(document), size)]
    assert "".join(answer.feed(piece) for piece in pieces) == text


async def test_structured_output_with_a_pydantic_model_is_an_instance(tmp_path: Path) -> None:
    engine = answering('{"good": true, "why": "so"}')
    async with scripted_runtime(tmp_path, engine):
        verdict = await ChatOrchestrate().with_structured_output(Verdict).ainvoke("good?")
    assert verdict == Verdict(good=True, why="so")
    schema: Any = engine.requests[0].schema
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("shape", [Place, PLACE_SCHEMA], ids=["typed dict", "schema"])
async def test_structured_output_with_a_schema_is_a_dict(tmp_path: Path, shape: Any) -> None:
    async with scripted_runtime(tmp_path, answering('{"city": "Bern"}')):
        value = await ChatOrchestrate().with_structured_output(shape).ainvoke("where?")
    assert value == {"city": "Bern"}


async def test_structured_output_that_was_cut_off_raises_structured_output_invalid(
    tmp_path: Path,
) -> None:
    model = ChatOrchestrate(max_tokens=2)
    async with scripted_runtime(tmp_path, answering('{"good": true, "why": "so and so"}')):
        with pytest.raises(StructuredOutputInvalid, match="raise max_tokens"):
            await model.with_structured_output(Verdict).ainvoke("good?")
        raw = await model.with_structured_output(Verdict, include_raw=True).ainvoke("good?")
    assert isinstance(raw, dict)
    assert raw["parsed"] is None
    assert isinstance(raw["parsing_error"], StructuredOutputInvalid)
    assert raw["raw"].text.startswith('{"good"')


async def _reply(model: Any, streams: bool) -> AIMessage:
    if not streams:
        message = await model.ainvoke("weather?")
        assert isinstance(message, AIMessage)
        return message
    whole: AIMessageChunk | None = None
    async for chunk in model.astream("weather?"):
        whole = chunk if whole is None else whole + chunk
    assert whole is not None
    return whole

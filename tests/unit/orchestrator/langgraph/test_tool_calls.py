"""Tools and shapes that ChatOrchestrate is given: what can be said then, and how it is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypedDict

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.tools import tool
from pydantic import BaseModel

from orchestrator import Message
from orchestrator.chat_model import ChatOrchestrate
from orchestrator.langgraph.tool_calls import AnswerText
from orchestrator.testing import ScriptedEngine
from serving.errors import InvalidRequest, StructuredOutputInvalid
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime


class Verdict(BaseModel):
    good: bool
    why: str


class Place(TypedDict):
    """Where something is."""

    city: str


PLACE_SCHEMA = {
    "title": "place",
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}


@tool
def weather(city: str) -> str:
    """What the sky does."""
    return f"rain in {city}"


@tool
def clock(zone: str = "utc") -> str:
    """What time it is."""
    return "noon"


def saying(text: str) -> ScriptedEngine:
    return ScriptedEngine(lambda _: text)


@pytest.mark.parametrize("streams", [False, True])
async def test_a_tool_is_called_by_json_to_which_the_model_is_held(
    tmp_path: Path, streams: bool
) -> None:
    engine = saying('{"tool": "weather", "arguments": {"city": "Bern"}}')
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
    told = request.prompt[0]
    assert isinstance(told, Message)
    assert told.role == "system"
    assert "What the sky does." in told.content


@pytest.mark.parametrize("streams", [False, True])
async def test_a_model_with_tools_may_answer(tmp_path: Path, streams: bool) -> None:
    text = 'it "rains"\nin Zürich \U0001f327'
    engine = saying(json.dumps({"answer": text}))
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
async def test_the_choice_of_tools_bounds_what_can_be_said(
    tmp_path: Path, choice: Any, shapes: list[str]
) -> None:
    engine = saying('{"tool": "clock", "arguments": {}}')
    async with scripted_runtime(tmp_path, engine):
        await ChatOrchestrate().bind_tools([weather, clock], tool_choice=choice).ainvoke("hi")
    schema: Any = engine.requests[0].schema or {"anyOf": []}
    found = [
        shape["properties"].get("tool", {"enum": ["answer"]})["enum"][0]
        for shape in schema.get("anyOf", [schema])
    ]
    assert found == shapes


def test_a_choice_that_is_no_tool_is_refused_at_once() -> None:
    with pytest.raises(InvalidRequest, match="hammer"):
        ChatOrchestrate().bind_tools([weather], tool_choice="hammer")
    with pytest.raises(InvalidRequest, match="web_search"):
        ChatOrchestrate().bind_tools([{"type": "web_search_preview"}])


async def test_a_call_of_a_tool_that_was_cut_is_an_invalid_one_and_a_cut_answer_is_kept(
    tmp_path: Path,
) -> None:
    model = ChatOrchestrate().bind_tools([weather])
    async with scripted_runtime(tmp_path, saying('{"tool": "weather", "arguments": {"ci')):
        message = await model.ainvoke("hi")
        assert isinstance(message, AIMessage)
    [call] = message.invalid_tool_calls
    assert call["name"] == "weather"
    assert message.tool_calls == []


@pytest.mark.parametrize("streams", [False, True])
async def test_an_engine_that_knows_no_schema_is_taken_at_its_word(
    tmp_path: Path, streams: bool
) -> None:
    async with scripted_runtime(tmp_path, saying("I would say rain")):
        message = await _reply(ChatOrchestrate().bind_tools([weather]), streams)
    assert message.text == "I would say rain"


async def test_an_answer_that_was_cut_is_kept_so_far(tmp_path: Path) -> None:
    model = ChatOrchestrate().bind_tools([weather])
    async with scripted_runtime(tmp_path, saying('{"answer": "it will')):
        assert (await model.ainvoke("hi")).text == "it will"


@pytest.mark.parametrize("size", [1, 2, 5])
def test_an_answer_is_decoded_however_its_json_is_cut_into_pieces(size: int) -> None:
    text = 'a "quote", a \\ and\ta \U0001f327 in Zürich'
    document = json.dumps({"answer": text})
    answer = AnswerText()
    pieces = [document[at : at + size] for at in range(0, len(document), size)]
    assert "".join(answer.feed(piece) for piece in pieces) == text


async def test_structured_output_is_an_instance_of_what_was_asked_for(tmp_path: Path) -> None:
    engine = saying('{"good": true, "why": "so"}')
    async with scripted_runtime(tmp_path, engine):
        verdict = await ChatOrchestrate().with_structured_output(Verdict).ainvoke("good?")
    assert verdict == Verdict(good=True, why="so")
    schema: Any = engine.requests[0].schema
    assert schema["additionalProperties"] is False


@pytest.mark.parametrize("shape", [Place, PLACE_SCHEMA], ids=["typed dict", "schema"])
async def test_structured_output_by_a_schema_is_a_dict(tmp_path: Path, shape: Any) -> None:
    async with scripted_runtime(tmp_path, saying('{"city": "Bern"}')):
        found = await ChatOrchestrate().with_structured_output(shape).ainvoke("where?")
    assert found == {"city": "Bern"}


async def test_structured_output_that_was_cut_is_an_error_by_name(tmp_path: Path) -> None:
    model = ChatOrchestrate(max_tokens=2)
    async with scripted_runtime(tmp_path, saying('{"good": true, "why": "so and so"}')):
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

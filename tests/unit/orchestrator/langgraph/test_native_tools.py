"""ChatOrchestrate on an engine that reads tool calls in the model's own format."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, ToolMessage
from langchain_core.tools import tool

from orchestrator import Message, ToolCall, flow
from orchestrator.chat_model import ChatOrchestrate
from orchestrator.testing import ScriptedEngine
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.tools.agent_samples import asks, call, in_json, native


@tool
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


BOTH = asks(call("weather", "a", city="Bern"), call("weather", "b", city="Oslo"), text="I look")


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("in_run", [False, True])
async def test_several_calls_of_one_answer_are_tool_calls_of_the_message(
    tmp_path: Path, streams: bool, in_run: bool
) -> None:
    engine, messages = native(BOTH), list[Any]()
    model = ChatOrchestrate().bind_tools([weather])

    async def ask() -> None:
        if streams:
            whole: Any = None
            async for chunk in model.astream("both?"):
                whole = chunk if whole is None else whole + chunk
            assert isinstance(whole, AIMessageChunk)
            messages.append(whole)
        else:
            messages.append(await model.ainvoke("both?"))

    async with scripted_runtime(tmp_path, engine) as runtime:
        if in_run:
            await runtime.run(flow(ask))
        else:
            await ask()
    [message] = messages
    assert message.text == "I look"
    assert [(each["name"], each["args"], each["id"]) for each in message.tool_calls] == [
        ("weather", {"city": "Bern"}, "a"),
        ("weather", {"city": "Oslo"}, "b"),
    ]
    [request] = engine.requests
    assert [spec.name for spec in request.tools] == ["weather"]
    assert request.schema is None
    assert request.prompt == (Message("user", "both?"),)


async def test_calls_and_results_in_the_history_are_turns_of_their_own(tmp_path: Path) -> None:
    engine = native("rain")
    made = {"name": "weather", "args": {"city": "Bern"}, "id": "a"}
    messages = [
        HumanMessage("weather?"),
        HumanMessage("In Bern."),
        AIMessage("I look", tool_calls=[made]),
        ToolMessage("rain", name="weather", tool_call_id="a"),
        ToolMessage("sun", name="weather", tool_call_id="b"),
    ]
    async with scripted_runtime(tmp_path, engine):
        await ChatOrchestrate().bind_tools([weather]).ainvoke(messages)
    assert engine.requests[0].prompt == (
        Message("user", "weather?\n\nIn Bern."),
        asks(call("weather", "a", city="Bern"), text="I look"),
        Message("tool", "rain", tool_call_id="a"),
        Message("tool", "sun", tool_call_id="b"),
    )


@pytest.mark.parametrize("arguments", ['{"city": ', "[1]"])
async def test_arguments_that_are_no_object_make_an_invalid_tool_call(
    tmp_path: Path, arguments: str
) -> None:
    engine = native(asks(ToolCall("a", "weather", arguments)))
    async with scripted_runtime(tmp_path, engine):
        message = await ChatOrchestrate().bind_tools([weather]).ainvoke("Bern?")
    assert isinstance(message, AIMessage)
    assert message.tool_calls == []
    [invalid] = message.invalid_tool_calls
    assert (invalid["name"], invalid["args"]) == ("weather", arguments)
    assert invalid["error"]


@pytest.mark.parametrize(
    "options",
    [
        {"tool_choice": "any"},
        {"tool_choice": "weather"},
        {"strict": True},
        {"parallel_tool_calls": False},
    ],
)
async def test_what_only_constrained_decoding_keeps_is_asked_for_in_json(
    tmp_path: Path, options: Any
) -> None:
    engine = native('{"tool": "weather", "arguments": {"city": "Bern"}}')
    async with scripted_runtime(tmp_path, engine):
        message = await ChatOrchestrate().bind_tools([weather], **options).ainvoke("Bern?")
    assert isinstance(message, AIMessage)
    assert [each["args"] for each in message.tool_calls] == [{"city": "Bern"}]
    [request] = engine.requests
    assert request.schema is not None
    assert not request.tools


async def test_a_call_that_was_recorded_in_json_is_replayed_so_on_an_engine_with_a_parser(
    tmp_path: Path,
) -> None:
    """As a run that a former version began, or another engine."""
    raise_once = RaiseOnce()

    @flow
    async def talk() -> list[str]:
        model = ChatOrchestrate().bind_tools([weather])
        first = await model.ainvoke("Bern?")
        raise_once()
        return [str(first.text), str((await model.ainvoke("Oslo?")).text)]

    async with scripted_runtime(tmp_path, in_json({"answer": "rain"})) as runtime:
        await run_until_interrupted(runtime, talk)
    engine = native("sun")
    async with scripted_runtime(tmp_path, engine) as runtime:
        assert (await runtime.resume(ID, talk)).value == ["rain", "sun"]
    [request] = engine.requests
    assert request.tools


async def test_a_call_that_was_recorded_natively_is_replayed_so_on_an_engine_without_a_parser(
    tmp_path: Path,
) -> None:
    raise_once = RaiseOnce()

    @flow
    async def talk() -> list[str]:
        model = ChatOrchestrate().bind_tools([weather])
        first = await model.ainvoke("Bern?")
        raise_once()
        return [str(first.text), str((await model.ainvoke("Oslo?")).text)]

    async with scripted_runtime(tmp_path, native("rain")) as runtime:
        await run_until_interrupted(runtime, talk)
    async with scripted_runtime(tmp_path, in_json({"answer": "sun"})) as runtime:
        assert (await runtime.resume(ID, talk)).value == ["rain", "sun"]


async def test_a_synchronous_call_gets_native_calls_too(tmp_path: Path) -> None:
    engine: ScriptedEngine = native(BOTH)
    async with scripted_runtime(tmp_path, engine):
        model = ChatOrchestrate().bind_tools([weather])
        message = await asyncio.to_thread(model.invoke, "both?")
    assert isinstance(message, AIMessage)
    assert len(message.tool_calls) == 2

"""Agents at an OpenAI-compatible server: its tool calls, its refusals, its repetitions."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from orchestrator import AgentResult, Settings, agent, flow, open_runtime, tool
from serving.engine.clients.remote import RemoteEngine
from serving.errors import InvalidRequest, ToolsNotSupported
from serving.generation import GenerationRequest, Message, ToolCall, ToolSpec
from tests.unit.orchestrator.orchestrator_samples import store_url
from tests.unit.orchestrator.tools.tool_server import (
    MODEL,
    Deltas,
    Reply,
    ToolServer,
    piece,
    tool_server,
)

REFUSAL = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'


@tool(effects="pure")
def weather(city: str) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def answering(*answers: Deltas | str) -> Reply:
    left = list(answers)
    return lambda _: left.pop(0)


async def ask(folder: Path, server: ToolServer, num: int = 1, **settings: Any) -> Any:
    """The results of agents, one after another, at a server."""
    results: list[AgentResult[str]] = []

    @flow
    async def agents() -> None:
        results.extend([await agent("Bern?", [weather]) for _ in range(num)])

    where = Settings(
        store=store_url(folder), engine=server.url, model=MODEL, fit_every=0, **settings
    )
    async with open_runtime(where) as runtime:
        await runtime.run(agents)
    return results


async def test_parallel_calls_of_a_server_are_collected_from_their_pieces(tmp_path: Path) -> None:
    calls = [
        {"role": "assistant", "content": "Let me look."},
        piece(0, "a", "weather", ""),
        piece(0, None, None, '{"city": '),
        piece(0, None, None, '"Bern"}'),
        piece(1, "b", "weather", '{"city": "Oslo"}'),
    ]
    with tool_server(answering(calls, [{"content": "rain"}, {"content": " in both"}])) as server:
        [result] = await ask(tmp_path, server)
    assert result.value == "rain in both"
    assert [(use.id, use.result) for use in result.calls] == [
        ("a", "rain in Bern"),
        ("b", "rain in Oslo"),
    ]
    first, second = server.bodies
    [spec] = first["tools"]
    assert spec["type"] == "function"
    assert spec["function"]["name"] == "weather"
    assert spec["function"]["parameters"]["required"] == ["city"]
    assert "response_format" not in first
    asked, *answered = second["messages"][1:]
    assert asked["content"] == "Let me look."
    assert [each["function"]["arguments"] for each in asked["tool_calls"]] == [
        '{"city": "Bern"}',
        '{"city": "Oslo"}',
    ]
    assert answered == [
        {"role": "tool", "content": "rain in Bern", "tool_call_id": "a"},
        {"role": "tool", "content": "rain in Oslo", "tool_call_id": "b"},
    ]


async def test_a_wrong_tool_and_wrong_arguments_go_back_to_the_server(tmp_path: Path) -> None:
    wrong = [
        piece(0, "a", "fly", "{}"),
        piece(1, "b", "weather", '{"town": "Bern"}'),
        piece(2, "c", "weather", '{"city": '),
    ]
    with tool_server(answering(wrong, [{"content": "sorry"}])) as server:
        [result] = await ask(tmp_path, server)
    assert result.value == "sorry"
    asked, *answered = server.bodies[1]["messages"][1:]
    for message, says in zip(answered, ("'fly'", "city: Field required", "no JSON"), strict=True):
        assert says in message["content"]
    # A server refuses a chat with arguments that are no JSON.
    assert [json.loads(each["function"]["arguments"]) for each in asked["tool_calls"]] == [
        {},
        {"town": "Bern"},
        {},
    ]


async def test_repeated_and_missing_ids_and_places_do_not_mix_calls(tmp_path: Path) -> None:
    calls = [
        piece(0, "call_0", "weather", '{"city": "Bern"}'),
        piece(1, "call_0", "weather", '{"city": "Oslo"}'),
    ]
    placeless = [
        piece(None, None, "weather", '{"city": '),
        piece(None, None, None, '"Rome"}'),
        piece(None, None, "weather", '{"city": "Riga"}'),
    ]
    with tool_server(answering(calls, calls, placeless, [{"content": "done"}])) as server:
        [result] = await ask(tmp_path, server)
    cities = ["Bern", "Oslo", "Bern", "Oslo", "Rome", "Riga"]
    assert [use.result for use in result.calls] == [f"rain in {city}" for city in cities]
    assert len({use.id for use in result.calls}) == len(cities)


@pytest.mark.parametrize(
    ("index", "arguments", "result"),
    [
        (0, {"city": "Bern"}, "rain in Bern"),
        ([0], '{"city": "Bern"}', "rain in Bern"),
        ("0", '{"city": "Bern"}', "rain in Bern"),
        (0, ["Bern"], "Error: the arguments of weather are no JSON object"),
    ],
)
async def test_a_call_of_an_unusual_form_is_read_or_said_to_be_wrong(
    tmp_path: Path, index: Any, arguments: Any, result: str
) -> None:
    sent = piece(index, "a", "weather", arguments)
    with tool_server(answering([sent], [{"content": "done"}])) as server:
        [answer] = await ask(tmp_path, server)
    assert [use.result for use in answer.calls] == [result]


@pytest.mark.parametrize(
    "refusal",
    [
        REFUSAL,
        "registry.ollama.ai/library/tiny does not support tools",
        "tools param requires --jinja flag",
        "Function calling is not supported by this model",
    ],
)
async def test_a_server_that_refuses_tools_is_asked_for_json_from_then_on(
    tmp_path: Path, refusal: str, caplog: pytest.LogCaptureFixture
) -> None:
    def reply(body: dict[str, Any]) -> Deltas | str:
        if "tools" in body:
            return refusal
        is_first = len(body["messages"]) == 2
        written = (
            {"tool": "weather", "arguments": {"city": "Bern"}} if is_first else {"answer": "rain"}
        )
        return [{"content": json.dumps(written)}]

    with caplog.at_level(logging.WARNING, "orchestrate"), tool_server(reply) as server:
        results = await ask(tmp_path, server, num=2)
    assert [result.value for result in results] == ["rain", "rain"]
    assert [use.result for use in results[1].calls] == ["rain in Bern"]
    assert ["tools" in body for body in server.bodies] == [True, False, False, False, False]
    [warning] = [each for each in caplog.records if "tools" in each.getMessage()]
    assert refusal in warning.getMessage()


async def test_the_setting_none_asks_a_server_for_json_at_once(tmp_path: Path) -> None:
    with tool_server(lambda _: [{"content": '{"answer": "rain"}'}]) as server:
        [result] = await ask(tmp_path, server, tool_parser="none")
    assert result.value == "rain"
    [body] = server.bodies
    assert "tools" not in body
    assert "response_format" in body


def request(**changes: Any) -> GenerationRequest:
    tools = (ToolSpec("weather", "", {"type": "object", "properties": {}}),)
    fields = {"request_id": "r", "prompt": (Message("user", "hi"),), "tools": tools} | changes
    return GenerationRequest(**fields)


async def test_another_error_about_a_tool_is_no_refusal_of_all_tools() -> None:
    with tool_server(lambda _: "Invalid schema for function 'weather'") as server:
        engine = RemoteEngine(server.url)
        with pytest.raises(InvalidRequest, match="Invalid schema"):
            await engine.generate(request())
        assert engine.info.tool_parser == "server"
        await engine.close()


async def test_a_refusal_is_an_error_for_who_asks_the_engine_itself() -> None:
    with tool_server(lambda _: REFUSAL) as server:
        engine = RemoteEngine(server.url)
        for _ in range(2):
            with pytest.raises(ToolsNotSupported, match="r: "):
                await engine.generate(request())
        await engine.close()
    assert len(server.bodies) == 1


async def test_calls_that_were_not_asked_for_are_left_out() -> None:
    with tool_server(lambda _: [piece(0, "a", "weather", "{}")]) as server:
        engine = RemoteEngine(server.url)
        answer = await engine.generate(request(tools=()))
        assert answer.tool_calls == ()
        answer = await engine.generate(request())
        assert answer.tool_calls == (ToolCall("a", "weather", "{}"),)
        assert answer.finish_reason == "stop"
        await engine.close()

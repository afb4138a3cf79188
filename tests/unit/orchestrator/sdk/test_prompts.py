"""Prompts in OpenAI's form: roles, parts, images, calls of tools."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from orchestrator import Image, Message, flow, llm
from orchestrator.sdk.prompts import turns_of
from orchestrator.testing import ScriptedEngine
from serving.engine.clients.chat_turns import openai_turn
from serving.errors import InvalidRequest
from serving.generation import ToolCall
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import answer_ok, scripted_runtime, the_run
from tests.unit.orchestrator.run_samples import ID

URL = "https://here/a.png"
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}


def turn_of(turn: Any) -> Message:
    [message] = turns_of([turn], None)
    assert isinstance(message, Message)
    return message


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({"role": "user", "content": "hi"}, Message("user", "hi")),
        ({"role": "user", "content": ""}, Message("user", "")),
        ({"role": "developer", "content": "be brief"}, Message("system", "be brief")),
        (
            {"role": "user", "content": [{"type": "text", "text": "a"}]},
            Message("user", ("a",)),
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what is this?"},
                    {"type": "image_url", "image_url": {"url": URL}},
                    {"type": "image_url", "image_url": {"url": URL, "detail": "auto"}},
                    {"type": "image_url", "image_url": URL},
                    Image(URL),
                    "and this?",
                ],
            },
            Message("user", ("what is this?", *[Image(URL)] * 4, "and this?")),
        ),
        (
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            Message("assistant", "", (ToolCall("c1", "add", '{"a": 1}'),)),
        ),
        (
            {"role": "assistant", "content": "I add", "tool_calls": [CALL], "refusal": None},
            Message("assistant", "I add", (ToolCall("c1", "add", '{"a": 1}'),)),
        ),
        (
            {"role": "assistant", "content": "x", "annotations": [], "audio": None},
            Message("assistant", "x"),
        ),
        ({"role": "tool", "tool_call_id": "c1", "content": "1"}, Message("tool", "1", (), "c1")),
    ],
)
def test_a_turn_of_openai_s_form_is_read(given: dict[str, Any], read: Message) -> None:
    assert turn_of(given) == read
    assert turn_of(read) is read


@pytest.mark.parametrize(
    "message",
    [
        Message("user", "hi"),
        Message("user", ("see", Image(URL), "and say")),
        Message("assistant", "", (ToolCall("c1", "add", "{}"), ToolCall("c2", "add", '{"a": 1}'))),
        Message("tool", "2", (), "c2"),
    ],
)
def test_the_form_that_is_sent_to_servers_is_read_back(message: Message) -> None:
    assert turn_of(openai_turn(message)) == message


@pytest.mark.parametrize(
    "turn",
    [
        {"role": "user", "content": 3},
        {"role": "user", "content": {"type": "text", "text": "x"}},
        {"role": "user", "content": [3]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "user", "content": [{"type": "text"}]},
        {"role": "user", "content": [{"type": "text", "text": "x", "more": 1}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": 3}}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": URL, "x": 1}}]},
        {
            "role": "user",
            "content": [{"type": "image_url", "image_url": {"url": URL, "detail": "high"}}],
        },
        {"role": "function", "content": "x"},
        {"role": "user", "content": "x", "name": "bob"},
        {"role": "user", "content": "x", "tool_calls": [CALL]},
        {"role": "user", "content": "x", "tool_call_id": "c1"},
        {"role": "assistant", "content": "x", "tool_calls": "c1"},
        {"role": "assistant", "content": "x", "tool_calls": [{"id": "c1"}]},
        {"role": "assistant", "content": None},
        {"role": "tool", "content": "x"},
        {"role": "tool", "content": "x", "tool_call_id": ""},
        {"role": "tool", "content": "x", "tool_call_id": 3},
        {"role": ["user"], "content": "x"},
        "a text",
        None,
    ],
)
def test_what_is_no_turn_is_refused(turn: object) -> None:
    with pytest.raises(ValueError, match=r"turn|part|call|list"):
        turns_of([turn], None)  # type: ignore[list-item]


def test_an_image_of_another_scheme_is_refused() -> None:
    turn = {"role": "user", "content": [{"type": "image_url", "image_url": "file:///etc/passwd"}]}
    with pytest.raises(InvalidRequest, match="no URL of http"):
        turns_of([turn], None)


def test_parts_of_text_alone_are_sent_as_a_text() -> None:
    """Many chat templates read no lists."""
    assert openai_turn(Message("user", ("a ", "b"))) == {"role": "user", "content": "a b"}


async def test_an_image_reaches_the_engine_and_is_not_recorded(tmp_path: Path) -> None:
    image, fail_once = Image.from_bytes(b"\x89PNG\r\n\x1a\n" + b"\x07" * 100_000), RaiseOnce()

    @flow
    async def describing() -> str:
        answer = await llm([Message("user", ("What is in ", image, "?"))])
        fail_once()
        return answer

    engine = ScriptedEngine(answer_ok)
    async with scripted_runtime(tmp_path, engine, record_text=True) as runtime:
        await run_until_interrupted(runtime, describing)
        assert (await runtime.resume(ID, describing)).value == "all is well"
        [call] = (await the_run(runtime.store)).calls
        async with runtime.store.reading() as tx:
            assert call.prompt_payload is not None
            prompt = await tx.payloads.get(call.prompt_payload)
    [request] = engine.requests
    assert request.prompt == (Message("user", ("What is in ", image, "?")),)
    assert prompt == b"user: What is in [image]?"
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        [largest] = connection.execute("SELECT max(size) FROM payloads").fetchone()
        [largest_result] = connection.execute("SELECT max(length(result)) FROM steps").fetchone()
    assert max(largest, largest_result) < 1000

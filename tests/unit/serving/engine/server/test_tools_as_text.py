"""Chats with tools as texts, for models without a format for tools."""

from __future__ import annotations

from typing import Any

import pytest

from serving.engine.server.tools_as_text import tools_as_text

USER = {"role": "user", "content": "Bern?"}
IMAGE = {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}


def asking(arguments: Any = '{"city": "Bern"}', content: Any = None) -> dict[str, Any]:
    call = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return {"role": "assistant", "content": content, "tool_calls": [call]}


def result(content: Any = "rain", call_id: str = "a") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": content}


@pytest.mark.parametrize(
    "messages",
    [
        [USER],
        [USER, USER],
        [{"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}, USER],
        [USER, {"role": "assistant", "content": "rain", "tool_calls": []}],
    ],
)
def test_a_chat_without_tools_stays_as_it_is(messages: list[Any]) -> None:
    assert tools_as_text(messages, None) == messages


def test_calls_and_results_are_texts_of_alternating_turns() -> None:
    told = {"role": "system", "content": "Call tools."}
    brief = {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}
    turns = [brief, USER, asking(content="Let me look."), result(), result("snow", "b"), USER]
    assert tools_as_text(turns, told["content"]) == [
        {"role": "system", "content": "Call tools.\n\nBe brief."},
        USER,
        {
            "role": "assistant",
            "content": 'Let me look.\n{"tool": "weather", "arguments": {"city": "Bern"}}',
        },
        {
            "role": "user",
            "content": "Result of weather:\nrain\n\nResult of the tool:\nsnow\n\nBern?",
        },
    ]


@pytest.mark.parametrize(
    ("arguments", "written"), [("", '""'), ("{cut", '"{cut"'), (None, "{}"), ({"n": 1}, '{"n": 1}')]
)
def test_arguments_of_any_kind_are_written(arguments: Any, written: str) -> None:
    [turn] = tools_as_text([asking(arguments)], None)
    assert turn["content"] == f'{{"tool": "weather", "arguments": {written}}}'


def test_images_stay_where_they_are_and_keep_their_turn_apart() -> None:
    shown = {"role": "user", "content": [{"type": "text", "text": "Look."}, IMAGE]}
    turns = tools_as_text([USER, shown, asking(), result([IMAGE]), USER], None)
    assert turns[:2] == [USER, shown]
    assert turns[3]["content"] == [{"type": "text", "text": "Result of weather:\n"}, IMAGE]
    assert turns[4] == USER


def test_a_name_is_kept_with_its_turn() -> None:
    named = {"role": "user", "name": "Eve", "content": "Oslo?"}
    assert tools_as_text([USER, named], "Call tools.")[1:] == [USER, named]

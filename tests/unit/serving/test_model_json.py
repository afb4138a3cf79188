"""JSON that a model wrote: which texts are read, and what is said of the others."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serving.engine.clients.chat_turns import openai_turn, template_turn
from serving.errors import StructuredOutputInvalid
from serving.generation import Completion, Message, ToolCall, Usage
from serving.model_json import MAX_DEPTH, arguments_of, json_of


def nested(depth: int, inner: str = "") -> str:
    return "[" * depth + inner + "]" * depth


@pytest.mark.parametrize("inner", ["", "1", '{"a": 1}'])
def test_json_is_read_to_its_greatest_depth_and_no_deeper(inner: str) -> None:
    depth = MAX_DEPTH - inner.count("{")
    assert json_of(nested(depth, inner)) is not None
    with pytest.raises(ValueError, match="more than 200 deep"):
        json_of(nested(depth + 1, inner))


@pytest.mark.parametrize("text", ["[" * 1_000_000, nested(100_000), '{"a":' * 5_000 + "1"])
def test_a_nesting_that_python_cannot_read_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"nested|Expecting"):
        json_of(text)


def test_brackets_in_texts_and_side_by_side_are_no_nesting() -> None:
    wide = json.dumps({"text": "[" * 1000, "list": [[]] * 1000})
    assert json_of(wide) == json.loads(wide)


@pytest.mark.parametrize(
    ("text", "arguments"),
    [("", {}), (" \n", {}), ("{}", {}), ('{"a": "b\nc"}', {"a": "b\nc"})],
)
def test_arguments_may_be_left_out_and_have_line_ends(text: str, arguments: Any) -> None:
    assert arguments_of(text) == arguments


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[1]", "no JSON object"),
        ("null", "no JSON object"),
        ('{"a": ', "no JSON: Expecting"),
        ('{"a": ' + nested(2000) + "}", "no JSON: it is nested more than 200 deep"),
        ('{"a": ' + "9" * 5000 + "}", "no JSON: "),
    ],
)
def test_what_are_no_arguments_is_said(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        arguments_of(text)


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ('{ "a":1 }', '{ "a":1 }'),
        ('{"a": "b\nc"}', '{"a": "b\\nc"}'),
        ('{"a": ' + nested(100_000) + "}", "{}"),
        ("[1]", "{}"),
        ("", "{}"),
    ],
)
def test_servers_and_templates_get_arguments_that_they_can_read(arguments: str, sent: str) -> None:
    turn = Message("assistant", "", tool_calls=(ToolCall("a", "look", arguments),))
    assert openai_turn(turn)["tool_calls"][0]["function"]["arguments"] == sent
    in_template = template_turn(turn)["tool_calls"][0]["function"]["arguments"]
    assert in_template == json.loads(sent)


def test_a_completion_that_is_nested_too_deep_is_no_valid_output() -> None:
    completion = Completion("r", nested(100_000), "stop", Usage(1, 1), 0.0, 0.0)
    with pytest.raises(StructuredOutputInvalid, match="nested"):
        completion.parsed()

"""Tool calls in JSON: bounds for small models, schemas of answers, what is read of a reply."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import pytest

from serving.generation import Message, ToolCall, ToolSpec
from serving.schema_bound import Bounds, ToolProtocol
from serving.schema_transforms import bounded_schema

SEND = ToolSpec(
    "send",
    "Send a mail.",
    {
        "type": "object",
        "properties": {
            "text": {"type": "string"},
            "to": {"type": "array", "items": {"$ref": "#/$defs/Name"}},
            "size": {"type": "string", "maxLength": 5000},
        },
        "required": ["text"],
        "$defs": {"Name": {"type": "string"}},
    },
)
CITY = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/C"}},
    "$defs": {"C": {"enum": ["Bern"]}},
}


DEEP = '{"text": ' + "[" * 9999 + "]" * 9999 + "}"


def test_bounds_limit_what_the_tool_s_schema_does_not() -> None:
    schema = ToolProtocol([SEND], bounds=Bounds(30, 20, 2)).schema()
    reply = jsonschema.Draft202012Validator(schema)

    def is_valid(**arguments: Any) -> bool:
        return reply.is_valid({"tool": "send", "arguments": arguments})

    assert is_valid(text="x" * 20, to=["a", "b"])
    assert not is_valid(text="x" * 21)
    assert not is_valid(text="x", to=["a", "b", "c"])
    assert not is_valid(text="x", to=["x" * 21])
    assert is_valid(text="x", size="x" * 5000)
    assert reply.is_valid({"answer": "x" * 30})
    assert not reply.is_valid({"answer": "x" * 31})


def test_without_bounds_nothing_is_added() -> None:
    reply = jsonschema.Draft202012Validator(ToolProtocol([SEND]).schema())
    assert reply.is_valid({"answer": "x" * 10_000})
    assert reply.is_valid({"tool": "send", "arguments": {"text": "x" * 10_000}})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^a+$"},
        {"type": "string", "format": "date"},
        {"type": "string", "enum": ["a"]},
        {"const": {"type": "string"}},
        {"type": "object", "properties": {"type": {"enum": ["string"]}}},
        True,
    ],
)
def test_what_a_limit_could_make_impossible_has_none(schema: Any) -> None:
    assert bounded_schema(schema, characters=3, items=3) == schema


def test_a_least_length_above_the_bound_stays_possible() -> None:
    schema = {"type": "array", "minItems": 5, "items": {"type": "string", "minLength": 9}}
    assert bounded_schema(schema, characters=3, items=3) == {
        "type": "array",
        "minItems": 5,
        "maxItems": 5,
        "items": {"type": "string", "minLength": 9, "maxLength": 9},
    }


def test_an_answer_with_a_schema_may_refer_to_definitions_of_its_own() -> None:
    protocol = ToolProtocol([SEND], answer=CITY)
    reply = jsonschema.Draft202012Validator(protocol.schema())
    assert reply.is_valid({"answer": {"city": "Bern"}})
    assert not reply.is_valid({"answer": {"city": "Rome"}})
    assert not reply.is_valid({"answer": "Bern"})
    assert "enum" in protocol.instructions()
    assert protocol.read('{"answer": {"city": "Bern"}}', "a").text == '{"city": "Bern"}'


def test_a_reply_that_must_be_an_answer_is_no_call() -> None:
    protocol = ToolProtocol([SEND], must_answer=True)
    assert list(protocol.schema()["properties"]) == ["answer"]
    assert "send" in protocol.instructions()  # as in the turns before, so that they stay cached


@pytest.mark.parametrize(
    ("text", "answer", "arguments"),
    [
        ('{"answer": "so"}', "so", None),
        ('{"answer": "so', "so", None),
        ("so", "so", None),
        ("3", "3", None),
        ('{"tool": "send", "arguments": {"text": "a"}}', "", '{"text": "a"}'),
        ('{"tool": "send", "arguments": {"text": "a', "", '{"text": "a'),
        ('{"tool": "send"}', "", "{}"),
        ('{"tool": "send", "arguments": ', "", "{"),
        ('{"tool": "send"', "", "{"),
        ('{"tool": 3}', '{"tool": 3}', None),
        ('{"answer": "a\\qb"}', "a\\qb", None),
        ('{"answer": "a\\\\\\q\\u0041"}', "a\\\\qA", None),
        ('{"tool": "send", "arguments": ' + DEEP + "}", "", DEEP + "}"),
    ],
)
def test_a_reply_is_read_even_if_it_was_cut_off(
    text: str, answer: str, arguments: str | None
) -> None:
    reply = ToolProtocol([SEND]).read(text, "a")
    assert reply.text == answer
    assert [call.arguments for call in reply.calls] == ([] if arguments is None else [arguments])


def test_calls_and_results_are_texts_in_a_chat_of_alternating_turns() -> None:
    call = ToolCall("a", "send", json.dumps({"text": "hi"}))
    turns = (
        Message("system", "Be brief."),
        Message("user", "Send hi."),
        Message("assistant", "Yes.", tool_calls=(call, ToolCall("b", "send", "{cut"))),
        Message("tool", "sent", tool_call_id="a"),
        Message("tool", "Error: cut", tool_call_id="b"),
        Message("user", "And?"),
    )
    system, *others = ToolProtocol([SEND]).turns(turns)
    assert system.text.startswith("Reply in JSON")
    assert system.text.endswith("\n\nBe brief.")
    assert others == [
        Message("user", "Send hi."),
        Message(
            "assistant",
            'Yes.\n{"tool": "send", "arguments": {"text": "hi"}}\n'
            '{"tool": "send", "arguments": "{cut"}',
        ),
        Message("user", "Result of send:\nsent\n\nResult of send:\nError: cut\n\nAnd?"),
    ]

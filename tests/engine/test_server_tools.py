"""The server's tool parser, chosen by setting, flag or model; and how ours reads an answer."""

from __future__ import annotations

import asyncio
import json
from argparse import Namespace
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.clients.embedded import EmbeddedEngine
from serving.engine.server.tool_calling import set_tool_parser
from serving.engine.setup.config import EngineConfig
from serving.errors import InvalidEngineConfig

HERMES = "{% for tool in tools %}{% endfor %}<tool_call>"
CALL = '{"tool": "weather", "arguments": {"city": "Zürich \\"}"}}'
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@pytest.fixture
def llm(engine: EmbeddedEngine) -> Iterator[Any]:
    llm = asyncio.run(engine.call(lambda llm: llm))
    template = llm.get_tokenizer().chat_template
    yield llm
    llm.get_tokenizer().chat_template = template
    vars(llm.renderer).pop("render_messages_async", None)


def chosen(
    llm: Any, setting: str | None = None, *, template: str = "", **given: Any
) -> tuple[str | None, bool]:
    """The parser that a server would use, and whether it takes tools."""
    tokenizer = llm.get_tokenizer()
    tokenizer.chat_template = template or tokenizer.chat_template
    parsed = Namespace(**{"tool_call_parser": None, "enable_auto_tool_choice": False} | given)
    set_tool_parser(parsed, EngineConfig(tool_parser=setting), given, llm)
    return parsed.tool_call_parser, parsed.enable_auto_tool_choice


def test_a_parser_is_chosen_by_flag_then_setting_then_model_and_else_is_ours(llm: Any) -> None:
    assert chosen(llm) == ("orchestrate", True)
    assert chosen(llm, "none") == chosen(llm, "") == (None, False)
    assert chosen(llm, "hermes") == ("hermes", True)
    assert chosen(llm, tool_call_parser="xlam", enable_auto_tool_choice=True) == ("xlam", True)
    assert chosen(llm, enable_auto_tool_choice=False) == (None, False)
    assert chosen(llm, template=HERMES) == ("hermes", True)
    assert chosen(llm, "none", template=HERMES) == (None, False)
    with pytest.raises(InvalidEngineConfig, match=r"does not fit random: .*python_tag"):
        chosen(llm, "llama3_json")


def parser_and_request(**fields: Any) -> tuple[Any, Any]:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    from serving.engine.server.schema_bound_parser import SchemaBoundParser

    request: Any = ChatCompletionRequest(messages=[], **{"tools": [TOOL]} | fields)
    return SchemaBoundParser(None, request.tools), request


@pytest.mark.usefixtures("imported_vllm")
@pytest.mark.parametrize(
    ("text", "content", "num_calls"),
    [
        (CALL, "", 1),
        (CALL[:-1], "", 1),  # its arguments are whole
        *((CALL[:length], "", 0) for length in range(2, len(CALL) - 1)),
        ('{"answer": "a \\"}\\" b"}', 'a "}" b', 0),
        ('{"answer": "a } b', "a } b", 0),
        ('{"answer": {"city": "Bern"}}', '{"city": "Bern"}', 0),
        ('{"tool": "other", "arguments": {}}', "", 0),
        ('{"tool": "weather", "arguments": [1]}', "", 0),
        ("no JSON }", "no JSON }", 0),
        ("", "", 0),
    ],
)
@given(cuts=st.sets(st.integers(0, 80)))
def test_an_answer_is_read_alike_as_a_whole_and_in_pieces(
    text: str, content: str, num_calls: int, cuts: set[int]
) -> None:
    parser, request = parser_and_request()
    whole = parser.extract_tool_calls(text, request)
    assert (whole.content or "", len(whole.tool_calls)) == (content, num_calls)
    assert all(json.loads(call.function.arguments) for call in whole.tool_calls)
    ends = [*sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    deltas = [
        parser.extract_tool_calls_streaming("", "", piece, [], [], [], request) for piece in pieces
    ]
    said = [delta for delta in (*deltas, parser.finish_streaming()) if delta is not None]
    assert "".join(delta.content or "" for delta in said) == content
    calls = [call for delta in said for call in delta.tool_calls]
    assert [json.loads(call.function.arguments) for call in calls] == [
        json.loads(call.function.arguments) for call in whole.tool_calls
    ]


@pytest.mark.usefixtures("imported_vllm")
@pytest.mark.parametrize("fields", [{"tools": None}, {"tool_choice": "none"}])
def test_without_tools_that_may_be_called_an_answer_is_not_touched(fields: Any) -> None:
    parser, request = parser_and_request(**fields)
    assert parser.adjust_request(request).structured_outputs is None
    assert parser.extract_tool_calls(CALL, request).content == CALL
    delta = parser.extract_tool_calls_streaming("", "", CALL, [], [], [], request)
    assert (delta.content, delta.tool_calls) == (CALL, [])
    assert parser.finish_streaming() is None

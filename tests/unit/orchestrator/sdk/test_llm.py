"""LLM calls: prompts, structured output, streaming, SLOs and errors."""

from __future__ import annotations

import json
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field

from orchestrator import Message, Runtime, flow, gather, llm, step
from orchestrator.testing import ScriptedEngine
from serving.errors import (
    EngineDied,
    InvalidRequest,
    PromptTooLong,
    RequestDropped,
    RequestFailed,
    ServingError,
    StructuredOutputInvalid,
)
from serving.generation import GenerationRequest
from serving.schema_transforms import closed_schema
from serving.slo import SloKind
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import (
    Boom,
    answer_ok,
    recorded,
    scripted_runtime,
    the_run,
)
from tests.unit.orchestrator.schema_answers import fitting_answer


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int | None = None


class Drawing(BaseModel):
    model_config = ConfigDict(title="Art")

    colour: Colour
    style: Literal["bold", "thin"]
    points: list[Point] = Field(min_length=1)
    label: str | None = None
    weights: dict[str, float] = Field(default_factory=dict)


def answering(text: str) -> ScriptedEngine:
    return ScriptedEngine(lambda _request: text)


async def call_llm(folder: Path, engine: ScriptedEngine, **arguments: Any) -> Any:
    """The result of llm() in a flow that does nothing else."""

    async def body() -> Any:
        return await llm("draw", **arguments)

    async with scripted_runtime(folder, engine) as runtime:
        return (await runtime.run(flow(name="f")(body))).value


async def test_a_plain_call_returns_the_text(tmp_path: Path) -> None:
    assert await call_llm(tmp_path, answering("plain  text ")) == "plain  text "


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ({}, (Message("user", "draw"),)),
        ({"system": "be terse"}, (Message("system", "be terse"), Message("user", "draw"))),
        ({"raw": True}, "draw"),
    ],
)
async def test_a_prompt_becomes_the_turns_of_a_chat_unless_it_is_raw(
    tmp_path: Path, given: dict[str, Any], sent: object
) -> None:
    engine = answering("x")
    await call_llm(tmp_path, engine, **given, max_tokens=7, temperature=0.1, seed=3)
    [request] = engine.requests
    assert request.prompt == sent
    assert (request.max_tokens, request.temperature, request.seed) == (7, 0.1, 3)
    assert request.schema is None


async def test_the_turns_of_a_chat_are_sent_unchanged(runtime: Runtime) -> None:
    turns = [Message("system", "s"), Message("user", "u"), Message("assistant", "a")]

    async def body() -> str:
        return await llm(turns)

    await runtime.run(flow(body))
    assert runtime.engine.requests[0].prompt == tuple(turns)  # type: ignore[attr-defined]


async def test_with_a_pydantic_model_the_engine_gets_its_schema_and_the_caller_an_instance(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(lambda request: json.dumps(fitting_answer(request.schema)))
    drawing = await call_llm(tmp_path, engine, schema=Drawing)
    assert isinstance(drawing, Drawing)
    assert (drawing.colour, drawing.style) == (Colour.RED, "bold")
    schema = engine.requests[0].schema
    assert schema is not None
    assert schema["additionalProperties"] is False
    assert schema["$defs"]["Point"]["additionalProperties"] is False
    assert schema["properties"]["weights"]["additionalProperties"] == {"type": "number"}
    assert schema["$defs"]["Colour"]["enum"] == ["red", "blue"]


async def test_a_json_schema_is_sent_unchanged_and_the_json_value_is_returned(
    tmp_path: Path,
) -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}}
    engine = answering('{"n": 5}')
    assert await call_llm(tmp_path, engine, schema=schema) == {"n": 5}
    assert engine.requests[0].schema == schema


async def test_an_invalid_json_schema_raises_invalid_request(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="the JSON schema is not valid"):
        await call_llm(tmp_path, answering("{}"), schema={"type": "nonsense"})


@pytest.mark.parametrize(
    ("schema", "text"),
    [
        ({"type": "object"}, "no json"),
        ({"type": "object"}, '{"cut": "of'),
        ({"type": "object"}, "[]"),
        ({"properties": {"n": {"maximum": 3}}}, '{"n": 4}'),
        (Point, ""),
        (Point, "{}"),
        (Point, '{"x": "far"}'),
        (Point, "[1]"),
        (Drawing, '{"colour": "green", "style": "bold", "points": [{"x": 1}]}'),
        (Drawing, '{"colour": "red", "style": "bold", "points": []}'),
    ],
)
async def test_an_answer_that_does_not_fit_fails_the_step_but_its_call_is_completed(
    tmp_path: Path, schema: Any, text: str
) -> None:
    """The engine has answered, and its tokens count; the step fails."""

    @step
    async def ask_for_it() -> Any:
        return await llm("draw", schema=schema)

    async with scripted_runtime(tmp_path, answering(text)) as runtime:
        with pytest.raises(StructuredOutputInvalid) as refused:
            await runtime.run(flow(name="f")(ask_for_it))
        record = await the_run(runtime.store)
    assert refused.value.args[0] == f"{record.run.id}-0"
    assert record.calls[0].status is Status.COMPLETED
    assert record.calls[0].output_tokens == len(text.split(" "))
    assert record.steps["ask-for-it"].error_type == "StructuredOutputInvalid"
    assert record.run.error_message is None


async def test_the_error_of_an_answer_that_was_cut_off_says_what_to_do(tmp_path: Path) -> None:
    engine = answering('{"x": 1, "y": 2}')
    with pytest.raises(StructuredOutputInvalid, match="raise max_tokens"):
        await call_llm(tmp_path, engine, schema=Point, max_tokens=2)


@pytest.mark.parametrize("text", ["", "one", "a few words  and spaces ", "äöü\n\n🙂 x"])
async def test_the_streamed_pieces_join_to_the_text(tmp_path: Path, text: str) -> None:
    pieces: list[str] = []
    result = await call_llm(tmp_path, answering(text), on_text=pieces.append)
    assert "".join(pieces) == result == text
    assert all(pieces)


async def test_an_error_in_on_text_aborts_the_request_at_once(
    tmp_path: Path,
) -> None:
    engine = answering("one two three")

    def refuse(piece: str) -> None:
        raise Boom(piece)

    async def body() -> None:
        with pytest.raises(Boom):
            await llm("x", on_text=refuse)
        assert engine.aborted == [engine.requests[0].request_id]
        assert engine.num_running == 0

    async with scripted_runtime(tmp_path, engine) as runtime:
        await runtime.run(flow(body))
        [call] = (await the_run(runtime.store)).calls
    assert (call.status, call.error_type, call.output_tokens) == (Status.FAILED, "Boom", None)


@pytest.mark.parametrize(
    "error",
    [
        PromptTooLong("r", 9, 8),
        RequestDropped("r", "too late"),
        RequestFailed("r", "nan"),
        EngineDied("of old age"),
    ],
    ids=lambda error: type(error).__name__,
)
async def test_an_error_of_the_engine_is_raised_unchanged(
    tmp_path: Path, error: ServingError
) -> None:
    def script(request: GenerationRequest) -> str:
        raise error

    async with scripted_runtime(tmp_path, ScriptedEngine(script)) as runtime:
        with pytest.raises(type(error)) as raised:
            await runtime.run(flow(name="f")(lambda: llm("x")))
        [call] = (await the_run(runtime.store)).calls
    assert raised.value is error
    assert (call.status, call.error_type) == (Status.FAILED, type(error).__name__)


async def test_a_prompt_that_can_never_fit_raises_prompt_too_long(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok, max_model_tokens=100)
    with pytest.raises(PromptTooLong):
        await call_llm(tmp_path, engine, system="word " * 100)


async def test_every_call_of_a_run_with_a_deadline_has_a_complete_slo(
    runtime: Runtime,
) -> None:
    async def body() -> None:
        await llm("plan")
        await gather(llm("a"), llm("b"), llm("c"))

    result = await runtime.run(flow(deadline="10m", stages=2)(body))
    requests = runtime.engine.requests  # type: ignore[attr-defined]
    assert [request.slo.stage for request in requests] == [0, 1, 1, 1]
    assert [request.slo.stage_calls for request in requests] == [1, 3, 3, 3]
    assert len({request.request_id for request in requests}) == 4
    for request in requests:
        assert request.slo.kind is SloKind.COMPOUND
        assert request.slo.program == result.run_id
        assert request.request_id.startswith(f"{result.run_id}-")
        assert 0 < request.slo.deadline_s <= request.slo.final_s <= 600
    assert requests[0].slo.deadline_s <= 300


async def test_the_token_counts_of_the_engine_are_recorded(runtime: Runtime) -> None:
    result = await runtime.run(flow(name="f")(lambda: llm("a b c d")))
    record = await recorded(runtime.store, result.run_id)
    [call], [node] = record.calls, record.pattern.nodes
    assert (call.prompt_tokens, call.output_tokens, call.cached_tokens) == (4, 3, 0)
    assert (node.input_tokens, node.output_tokens) == (4, 3)
    assert call.finish_reason == "stop"
    assert call.ttft_s == 0.0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(json_values)
def test_closing_a_schema_changes_nothing_else_and_is_idempotent(schema: Any) -> None:
    closed = closed_schema(schema)
    assert closed_schema(closed) == closed
    assert without_closing(closed) == without_closing(schema)


def without_closing(schema: Any) -> Any:
    if isinstance(schema, list):
        return [without_closing(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: without_closing(value)
        for key, value in schema.items()
        if not (key == "additionalProperties" and value is False)
    }


def test_an_object_that_allows_additional_properties_explicitly_stays_open() -> None:
    class Open(BaseModel):
        model_config = ConfigDict(extra="allow")

        x: int

    assert closed_schema(Open.model_json_schema())["additionalProperties"] is True


def test_a_field_may_have_the_name_of_a_keyword() -> None:
    class Odd(BaseModel):
        type: str
        properties: Point

    closed = closed_schema(Odd.model_json_schema())
    assert set(closed["properties"]) == {"type", "properties"}
    assert closed["additionalProperties"] is False

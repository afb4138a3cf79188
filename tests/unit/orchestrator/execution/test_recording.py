"""The records of a run in the store, and the texts that they never hold."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from orchestrator import Runtime, flow, gather, llm, step, tool
from orchestrator.durability.outcomes import MESSAGE_LIMIT, text_of
from orchestrator.testing import ScriptedEngine
from patterns import LlmNode, PatternGraph, ToolNode
from serving.errors import RequestDropped, StructuredOutputInvalid
from serving.generation import GenerationRequest
from store.records import CallKind, CallRecord, Status, StepRecord
from store.session import Store, open_store
from tests.unit.orchestrator.orchestrator_samples import (
    Boom,
    recorded,
    scripted_runtime,
    store_url,
    the_run,
)

SECRET = "xylophone-7319-confession"


@tool
def look_up(city: str) -> str:
    return f"{city} lies on the Danube"


@step
async def plan(question: str) -> str:
    return await llm(f"plan {question}", system="be brief")


@step
async def read(text: str) -> str:
    return await llm(text)


@flow
async def research(question: str) -> str:
    await plan(question)
    await gather(read("one"), read("two"), look_up(question))
    return await llm("and so")


async def test_the_stored_pattern_decodes_to_the_graph_of_the_run(runtime: Runtime) -> None:
    result = await runtime.run(research, "Ulm")
    record = await recorded(runtime.store, result.run_id)
    nodes: list[LlmNode | ToolNode] = []
    for call in record.calls:
        assert call.finished_s is not None
        seconds = call.finished_s - call.started_s
        if call.kind is CallKind.TOOL:
            nodes.append(ToolNode(call.identity, seconds))
        else:
            assert call.prompt_tokens is not None
            assert call.output_tokens is not None
            nodes.append(LlmNode(call.identity, call.prompt_tokens, call.output_tokens, seconds))
    graph = PatternGraph(tuple(nodes), tuple(record.edges))
    stored = record.pattern
    widths = [[len(layer) for layer in each.layers] for each in (stored, graph)]
    assert widths == [[1, 3, 1]] * 2
    assert shape(stored) == shape(graph)
    assert stored.critical_seconds == pytest.approx(graph.critical_seconds, rel=0.05, abs=0.005)


def shape(graph: PatternGraph) -> list[tuple[object, ...]]:
    """Everything of a graph that the codec does not round, sorted."""
    return sorted(
        (
            *(graph.stage_of[place], node.kind, node.identity),
            *(node.input_tokens, node.output_tokens),
            sorted(graph.nodes[parent].identity for parent in graph.parents[place]),
        )
        for place, node in enumerate(graph.nodes)
    )


async def test_the_times_of_steps_and_calls_lie_within_their_run(runtime: Runtime) -> None:
    result = await runtime.run(research, "Ulm")
    record = await recorded(runtime.store, result.run_id)
    assert record.run.status is Status.COMPLETED
    parts: list[StepRecord | CallRecord] = [*record.steps.values(), *record.calls]
    for part in parts:
        assert part.status is Status.COMPLETED
        assert part.finished_s is not None
        assert 0 <= part.started_s <= part.finished_s <= result.elapsed_s
    began = {call.node: call.started_s for call in record.calls}
    ended = {call.node: call.finished_s for call in record.calls}
    assert all(ended[parent] <= began[child] for parent, child in record.edges)  # type: ignore[operator]


async def test_stage_reports_have_the_calls_and_times_of_each_stage(runtime: Runtime) -> None:
    result = await runtime.run(research.options(deadline="1h", stages=3), "Ulm")
    assert [stage.stage for stage in result.stages] == [0, 1, 2]
    assert [sorted(stage.calls) for stage in result.stages] == [
        ["script:plan"],
        ["look-up", "script:read", "script:read"],
        ["script:research"],
    ]
    ends = [stage.ended_s for stage in result.stages]
    assert ends == sorted(ends)  # type: ignore[type-var]
    assert [stage.source for stage in result.stages] == ["fallback"] * 3
    assert result.stages[0].sub_deadline_s == pytest.approx(1200, abs=5)


async def test_a_run_without_calls_leaves_no_pattern(runtime: Runtime) -> None:
    async def body() -> None: ...

    await runtime.run(flow(body))
    assert (await the_run(runtime.store)).pattern_records == []


async def use_a_secret_everywhere(runtime: Runtime) -> None:
    """Runs that succeed, fail in user code, fail on an answer, and time out."""

    @tool
    def fails(text: str) -> None:
        raise Boom(f"cannot find {text}")

    @flow
    async def misled(text: str) -> None:
        await fails(text)

    @flow
    async def validated(text: str) -> None:
        await llm(text, schema={"type": "object"})

    @flow
    async def cut_off(text: str) -> None:
        await asyncio.wait_for(waiting(text), 0.05)

    @tool
    async def waiting(text: str) -> None:
        await asyncio.sleep(3600)

    assert SECRET in await research(SECRET)
    for failing in (misled, validated, cut_off):
        with pytest.raises((Boom, StructuredOutputInvalid, TimeoutError)):
            await failing(text=SECRET)


def confess(request: GenerationRequest) -> str:
    """The script of an engine with the secret in every answer."""
    return f"the word is {SECRET}"


def files_of(folder: Path) -> bytes:
    """All bytes of the store's files, the write-ahead log included."""
    files = [file for file in folder.iterdir() if file.name.startswith("store.db")]
    assert len(files) > 1, "the write-ahead log exists while the store is open"
    return b"".join(file.read_bytes() for file in files)


async def test_no_file_of_a_store_that_is_not_durable_holds_any_text(tmp_path: Path) -> None:
    """No prompts, answers, arguments or results, and no errors that quote them."""
    async with scripted_runtime(tmp_path, ScriptedEngine(confess), durable=False) as runtime:
        await use_a_secret_everywhere(runtime)
        data = files_of(tmp_path)
        async with runtime.store.reading() as tx:
            assert len(await tx.runs.newest()) == 4
    assert SECRET.encode() not in data
    assert SECRET.encode("utf-16-le") not in data
    assert b"Boom" in data


async def texts_of(store: Store, run_id: str) -> dict[str, str]:
    """The texts that are recorded of a run, by their place in it."""
    record = await recorded(store, run_id)
    hashes = {"input": record.run.input_payload, "result": record.run.result_payload}
    for call in record.calls:
        hashes[f"prompt {call.node}"] = call.prompt_payload
        hashes[f"output {call.node}"] = call.output_payload
    async with store.reading() as tx:
        return {
            name: (await tx.payloads.get(payload)).decode()
            for name, payload in hashes.items()
            if payload is not None
        }


async def test_texts_are_recorded_on_request(tmp_path: Path) -> None:
    engine = ScriptedEngine(confess)
    async with scripted_runtime(tmp_path, engine, record_text=True) as runtime:
        result = await runtime.run(research, SECRET)
    async with await open_store(store_url(tmp_path)) as store:
        texts = await texts_of(store, result.run_id)
    answer = f"the word is {SECRET}"
    assert json.loads(texts["input"]) == {"question": SECRET}
    assert json.loads(texts["result"]) == texts["output 0"] == answer

    assert texts["prompt 0"] == f"system: be brief\n\nuser: plan {SECRET}"
    prompts = [text for name, text in sorted(texts.items()) if name.startswith("prompt")]
    assert prompts[-1] == "user: and so"
    assert sorted(prompts[1:-1]) == ["user: one", "user: two"]


async def test_error_messages_are_recorded_on_request_up_to_a_limit(tmp_path: Path) -> None:
    async def body() -> None:
        raise Boom("x" * 10 * MESSAGE_LIMIT)

    async with scripted_runtime(tmp_path, record_text=True) as runtime:
        with pytest.raises(Boom):
            await runtime.run(flow(body))
        run = (await the_run(runtime.store)).run
    assert run.error_message == "x" * MESSAGE_LIMIT


async def test_the_reason_why_the_scheduler_dropped_a_call_is_always_recorded(
    tmp_path: Path,
) -> None:
    def script(request: GenerationRequest) -> str:
        raise RequestDropped(request.request_id, "it waited for 5 s")

    async with scripted_runtime(tmp_path, ScriptedEngine(script)) as runtime:
        with pytest.raises(RequestDropped):
            await runtime.run(flow(name="f")(lambda: llm("x")))
        record = await the_run(runtime.store)
    assert str(record.calls[0].error_message).endswith("it waited for 5 s")
    assert record.run.error_message == record.calls[0].error_message


class Unprintable:
    def __repr__(self) -> str:
        raise Boom

    def __str__(self) -> str:
        raise Boom


class UnprintableError(Exception):
    def __str__(self) -> str:
        raise Boom


@pytest.mark.parametrize("record_text", [False, True])
async def test_values_and_errors_that_cannot_be_printed_do_not_end_a_run(
    tmp_path: Path, record_text: bool
) -> None:
    @flow
    async def passes(value: object, *, other: object) -> object:
        return value

    @flow
    async def fails(value: object) -> object:
        raise UnprintableError

    value = Unprintable()
    async with scripted_runtime(tmp_path, record_text=record_text) as runtime:
        assert await passes(value, other=value) is value
        with pytest.raises(UnprintableError):
            await fails(value)
        async with runtime.store.reading() as tx:
            statuses = {run.flow: run.status for run in await tx.runs.newest()}
    assert statuses == {"passes": Status.COMPLETED, "fails": Status.FAILED}
    assert text_of(value) == "<Unprintable that cannot be shown: Boom>"


async def test_text_that_cannot_be_encoded_is_recorded_with_replacement_characters(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(lambda _request: "half \ud83d of a smile\0")
    async with scripted_runtime(tmp_path, engine, record_text=True) as runtime:
        result = await runtime.run(research, "\udc80")
        texts = await texts_of(runtime.store, result.run_id)
    assert texts["output 0"] == "half ? of a smile\0"


async def test_a_pattern_holds_calls_that_completed_or_were_cut_off(runtime: Runtime) -> None:
    """Calls that failed are left out, and no edge between the others is lost."""

    @step
    async def unlucky() -> None:
        await llm("before")
        await look_up("x")
        await fails()

    async def body() -> None:
        try:
            await gather(unlucky(), slow())
        except Boom:
            await llm("after")

    @tool
    async def slow() -> None:
        await asyncio.sleep(3600)

    @tool
    async def fails() -> None:
        raise Boom

    result = await runtime.run(flow(name="f")(body))
    record = await recorded(runtime.store, result.run_id)
    assert {call.identity: call.status for call in record.calls}["slow"] is Status.CANCELLED
    assert sorted(node.identity for node in record.pattern.nodes) == [
        *("look-up", "script:f", "script:unlucky", "slow"),
    ]
    stages = [sorted(call.identity for call in stage.calls) for stage in record.pattern.stages]
    assert stages == [["script:unlucky", "slow"], ["look-up"], ["script:f"]]

"""LangGraph graphs that end early: at their deadlines, with a wrap-up, or cancelled."""

from __future__ import annotations

import asyncio
import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from langgraph.func import entrypoint, task
from langgraph.graph import START, StateGraph

from orchestrator import DeadlineExceeded, InvalidDuration
from orchestrator.chat_model import ChatOrchestrate
from orchestrator.langgraph import attach
from orchestrator.testing import ScriptedEngine
from serving.generation import GenerationRequest
from store.records import Status
from tests.unit.orchestrator.langgraph.graph_samples import (
    TOPIC,
    ForeignChat,
    Notes,
    map_reduce,
    sync_chain,
)
from tests.unit.orchestrator.orchestrator_samples import (
    NEVER_S,
    all_runs,
    answer_ok,
    scripted_runtime,
    the_run,
)
from tests.unit.orchestrator.virtual_time import in_virtual_time, timed_runtime

pytestmark = pytest.mark.slow


def stalling(after: int) -> ScriptedEngine:
    """An engine that answers `after` requests quickly, and all later ones very slowly."""
    number = itertools.count()

    def answer(request: GenerationRequest) -> str:
        return "all is well" if next(number) < after else " ".join(["on"] * 100_000)

    return ScriptedEngine(answer, token_s=0.002)


@in_virtual_time
async def test_at_the_deadline_a_graph_raises_deadline_exceeded_and_its_requests_are_aborted(
    tmp_path: Path,
) -> None:
    engine = stalling(after=1)
    graph = attach(map_reduce(ChatOrchestrate()).compile(), deadline="1500ms", name="late")
    async with timed_runtime(tmp_path, engine) as runtime:
        with pytest.raises(DeadlineExceeded, match=r"late did not end within its 1\.5 s"):
            await graph.ainvoke(TOPIC)
        assert engine.num_running == 0
        assert len(engine.aborted) == 3
        record = await the_run(runtime.store)
    assert record.still_running() == []
    assert record.run.error_type == "DeadlineExceeded"
    assert {record.steps[f"work[{n}]"].status for n in range(3)} == {Status.CANCELLED}


@pytest.mark.parametrize("kind", ["async", "sync", "runnable"])
async def test_wrap_up_makes_the_result_from_the_last_known_state(
    tmp_path: Path, kind: str
) -> None:
    engine, model = stalling(after=1), ChatOrchestrate(max_tokens=3)
    seen: list[Any] = []

    async def wrap_up(state: Any) -> str:
        seen.append(state)
        return str((await model.ainvoke("in short")).text)

    def wrap_up_in_thread(state: Any) -> str:
        seen.append(state)
        return str(model.invoke("in short").text)

    wrap_up_of_kind: Any = {"async": wrap_up, "sync": wrap_up_in_thread}.get(kind)
    if kind == "runnable":
        wrap_up_of_kind = (
            StateGraph(Notes)
            .add_node("short", wrap_up_node(model))
            .add_edge(START, "short")
            .compile()
        )
    graph = attach(
        map_reduce(ChatOrchestrate()).compile(),
        deadline=8,
        tail=5,
        on_deadline="wrap_up",
        wrap_up=wrap_up_of_kind,
    )
    async with scripted_runtime(tmp_path, engine) as runtime:
        result = await graph.ainvoke(TOPIC)
        record = await the_run(runtime.store)
    assert engine.num_running == 0
    assert record.run.status is Status.COMPLETED
    assert record.still_running() == []
    wrapped = [call for call in record.calls if call.step_path.startswith("wrap-up[")]
    assert [call.status for call in wrapped] == [Status.COMPLETED]
    if kind == "runnable":
        assert result["report"] == "on on on"
    else:
        assert result == "on on on"
        assert seen == [{"topic": "tides", "notes": ["planned"]}]


def wrap_up_node(model: Any) -> Any:
    async def short(state: Notes) -> dict[str, Any]:
        return {"report": str((await model.ainvoke("in short")).text)}

    return short


async def test_with_best_so_far_the_result_is_the_output_of_the_last_known_state(
    tmp_path: Path,
) -> None:
    graph = sync_chain(ChatOrchestrate()).compile()
    attached = attach(graph, deadline="1500ms", on_deadline="best_so_far")
    engine = stalling(after=1)
    async with scripted_runtime(tmp_path, engine) as runtime:
        result = await attached.ainvoke(TOPIC)
        assert result == {"topic": "tides", "notes": ["all is well"]}
        chunks = [chunk async for chunk in attached.astream(TOPIC, stream_mode="values")]
        assert chunks[-1] == {"topic": "tides", "notes": []}
        assert engine.num_running == 0
        assert [record.still_running() for record in await all_runs(runtime.store)] == [[], []]


async def test_a_synchronous_call_ends_at_the_deadline_even_if_a_node_blocks(
    tmp_path: Path,
) -> None:
    def stuck(state: Notes) -> dict[str, Any]:
        time.sleep(3.0)
        return {"report": "too late"}

    graph = StateGraph(Notes).add_node("stuck", stuck).add_edge(START, "stuck").compile()
    attached = attach(graph, deadline="800ms", on_deadline="best_so_far")
    async with scripted_runtime(tmp_path) as runtime:
        began_s = time.monotonic()
        result = await asyncio.to_thread(attached.invoke, TOPIC)
        assert time.monotonic() - began_s < 2.5
        assert result == {"topic": "tides", "notes": []}
        assert (await the_run(runtime.store)).steps["stuck"].status is Status.CANCELLED


async def test_a_request_from_a_nodes_thread_is_aborted_at_the_deadline(tmp_path: Path) -> None:
    engine = stalling(after=0)
    attached = attach(sync_chain(ChatOrchestrate()).compile(), deadline="300ms")
    async with scripted_runtime(tmp_path, engine):
        with pytest.raises(DeadlineExceeded):
            await attached.ainvoke(TOPIC)
        assert engine.num_running == 0
        with pytest.raises(DeadlineExceeded):
            await asyncio.to_thread(attached.invoke, TOPIC)
        assert engine.num_running == 0
        with pytest.raises(DeadlineExceeded):
            await asyncio.to_thread(lambda: list(attached.stream(TOPIC)))
        assert engine.num_running == 0


@in_virtual_time
async def test_the_result_of_wrap_up_is_the_last_chunk_of_a_stream(tmp_path: Path) -> None:
    attached = attach(
        map_reduce(ChatOrchestrate()).compile(),
        deadline="3s",
        tail="1500ms",
        on_deadline="wrap_up",
        wrap_up=lambda state: {"report": f"only {state['notes']}"},
    )
    async with timed_runtime(tmp_path, stalling(after=1)):
        chunks = [chunk async for chunk in attached.astream(TOPIC)]
        assert chunks[-1] == {"wrap_up": {"report": "only ['planned']"}}
        chunks = [chunk async for chunk in attached.astream(TOPIC, stream_mode=["values"])]
        assert chunks[-1][0] == "values"
        assert chunks[-1][1]["report"].startswith("only")


@in_virtual_time
async def test_wrap_up_of_a_functional_graph_gets_the_results_of_its_tasks(tmp_path: Path) -> None:
    @task
    async def quick(topic: str) -> str:
        return f"{topic} in short"

    @task
    async def slow(topic: str) -> str:
        await asyncio.sleep(NEVER_S)
        return topic

    @entrypoint()
    async def article(topic: str) -> str:
        return await slow(await quick(topic))

    attached = attach(
        article,
        deadline="3s",
        tail="1500ms",
        on_deadline="wrap_up",
        wrap_up=lambda state: state,
    )
    async with timed_runtime(tmp_path):
        assert await attached.ainvoke("tides") == {"quick": "tides in short"}


async def test_leaving_a_stream_cancels_its_run(tmp_path: Path) -> None:
    engine = ScriptedEngine(answer_ok)
    attached = attach(map_reduce(ChatOrchestrate()).compile())
    async with scripted_runtime(tmp_path, engine) as runtime:
        stream = attached.astream(TOPIC)
        async for _ in stream:
            break
        await stream.aclose()  # type: ignore[attr-defined]
        record = await the_run(runtime.store)
        assert record.run.status is Status.CANCELLED
        assert record.still_running() == []
        assert len(engine.requests) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"deadline": "soon"},
        {"deadline": 10, "tail": 10, "on_deadline": "wrap_up", "wrap_up": print},
        {"deadline": 10, "on_deadline": "explode"},
        {"deadline": 10, "on_deadline": "wrap_up"},
        {"deadline": 10, "wrap_up": print},
    ],
    ids=str,
)
def test_invalid_options_are_refused_by_attach(wrong: Any) -> None:
    graph = sync_chain(ForeignChat()).compile()
    with pytest.raises((InvalidDuration, ValueError)):
        attach(graph, **wrong)

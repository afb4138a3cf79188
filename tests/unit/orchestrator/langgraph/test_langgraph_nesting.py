"""LangGraph graphs in flows and in graphs, and our primitives in nodes: one run, no duplicates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from langgraph.graph import START, StateGraph

from orchestrator import flow, llm
from orchestrator.langgraph import attach
from tests.unit.orchestrator.langgraph.graph_samples import TOPIC, Notes, by_model, map_reduce
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime, the_run


async def test_llm_in_a_node_is_a_call_of_the_nodes_step(tmp_path: Path) -> None:
    async def ask(state: Notes) -> dict[str, Any]:
        return {"report": await llm("how is it?")}

    graph = StateGraph(Notes).add_node("ask", ask).add_edge(START, "ask").compile()
    async with scripted_runtime(tmp_path) as runtime:
        await attach(graph).ainvoke(TOPIC)
        record = await the_run(runtime.store)
    assert [call.step_path for call in record.calls] == ["ask/llm"]


@by_model
async def test_a_graph_in_a_flow_is_a_step_of_its_run(tmp_path: Path, model: Any) -> None:
    graph = attach(map_reduce(model, parts=2).compile(), name="reduce", deadline="30s")

    @flow(deadline="60s")
    async def research() -> str:
        await llm("before")
        state = await graph.ainvoke(TOPIC)
        await llm("after")
        return str(state["report"])

    async with scripted_runtime(tmp_path) as runtime:
        await research()
        record = await the_run(runtime.store)
    by_path = {call.step_path: call.node for call in record.calls}
    assert set(by_path) == {
        "llm",
        "reduce/plan/llm",
        "reduce/work[0]/llm",
        "reduce/work[1]/llm",
        "reduce/write/llm",
        "llm#2",
    }
    assert (by_path["llm"], by_path["reduce/plan/llm"]) in record.edges
    assert (by_path["reduce/write/llm"], by_path["llm#2"]) in record.edges


@by_model
async def test_a_graph_in_a_graph_is_recorded_once(tmp_path: Path, model: Any) -> None:
    inner = attach(map_reduce(model, parts=1).compile(), name="inner")

    async def delegate(state: Notes) -> dict[str, Any]:
        return {"report": (await inner.ainvoke(TOPIC))["report"]}

    outer = StateGraph(Notes).add_node("delegate", delegate).add_edge(START, "delegate").compile()
    async with scripted_runtime(tmp_path) as runtime:
        await attach(outer).ainvoke(TOPIC)
        record = await the_run(runtime.store)
    assert [call.step_path for call in record.calls] == [
        "delegate/inner/plan/llm",
        "delegate/inner/work[0]/llm",
        "delegate/inner/write/llm",
    ]

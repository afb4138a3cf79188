"""attach(): LangGraph graphs are recorded, and otherwise behave as before."""

from __future__ import annotations

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, RetryPolicy

from orchestrator import WouldBlock
from orchestrator.chat_model import ChatOrchestrate
from orchestrator.langgraph import attach
from orchestrator.testing import ScriptedEngine
from serving.slo import SloKind
from store.records import CallKind, Status
from tests.unit.orchestrator.langgraph.graph_samples import (
    TOPIC,
    ForeignChat,
    Notes,
    by_model,
    map_reduce,
    sync_chain,
    with_approval,
)
from tests.unit.orchestrator.orchestrator_samples import (
    Boom,
    all_runs,
    answer_ok,
    scripted_runtime,
    the_run,
)


@by_model
async def test_each_node_is_a_step_and_each_call_has_its_causal_parents(
    tmp_path: Path, model: Any
) -> None:
    graph = map_reduce(model, calls=2).compile()
    async with scripted_runtime(tmp_path) as runtime:
        expected = await graph.ainvoke(TOPIC)
        assert await attach(graph, name="reduce").ainvoke(TOPIC) == expected
        record = await the_run(runtime.store)
    assert record.run.flow == "reduce"
    assert record.run.status is Status.COMPLETED
    nodes = {path for path in record.steps if not path.endswith(("llm", "llm#2"))}
    assert nodes == {"plan", "work[0]", "work[1]", "work[2]", "write"}
    by_path = {call.step_path: call.node for call in record.calls}
    assert len(by_path) == 8
    expected_edges = {(by_path["plan/llm"], by_path[f"work[{n}]/llm"]) for n in range(3)}
    expected_edges |= {(by_path[f"work[{n}]/llm"], by_path[f"work[{n}]/llm#2"]) for n in range(3)}
    expected_edges |= {(by_path[f"work[{n}]/llm#2"], by_path["write/llm"]) for n in range(3)}
    assert record.edges == expected_edges
    assert record.still_running() == []
    assert all(step.status is Status.COMPLETED for step in record.steps.values())
    assert len(record.pattern.nodes) == 8


async def test_calls_of_chat_orchestrate_carry_their_sub_deadlines_and_stage_calls(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(answer_ok)
    graph = attach(map_reduce(ChatOrchestrate()).compile(), deadline="60s")
    async with scripted_runtime(tmp_path, engine) as runtime:
        await graph.ainvoke(TOPIC)
        record = await the_run(runtime.store)
    slos = [request.slo for request in engine.requests]
    assert {slo.kind for slo in slos} == {SloKind.COMPOUND}
    assert {slo.program for slo in slos} == {record.run.id}
    assert sorted((slo.stage, slo.stage_calls) for slo in slos) == [
        (0, 1),
        (1, 3),
        (1, 3),
        (1, 3),
        (2, 1),
    ]
    assert all(call.sub_deadline_s is not None for call in record.calls)


async def test_calls_of_another_model_are_recorded_with_its_name_and_token_counts(
    tmp_path: Path,
) -> None:
    engine = ScriptedEngine(answer_ok)
    async with scripted_runtime(tmp_path, engine) as runtime:
        await attach(map_reduce(ForeignChat()).compile()).ainvoke(TOPIC)
        record = await the_run(runtime.store)
    assert engine.requests == []
    assert {call.identity for call in record.calls} == {
        "foreign:plan",
        "foreign:work",
        "foreign:write",
    }
    assert {(call.prompt_tokens, call.output_tokens) for call in record.calls} == {(5, 3)}


@by_model
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"stream_mode": "values"},
        {"stream_mode": ["updates", "custom"]},
        {"stream_mode": ["values", "updates"], "subgraphs": True},
        {"stream_mode": "updates", "subgraphs": True},
        {"stream_mode": "updates", "version": "v2"},
    ],
    ids=str,
)
async def test_a_stream_has_the_same_chunks_as_the_graphs_own(
    tmp_path: Path, model: Any, options: Any
) -> None:
    graph = map_reduce(model, parts=1).compile()
    async with scripted_runtime(tmp_path) as runtime:
        expected = [chunk async for chunk in graph.astream(TOPIC, **options)]
        assert [chunk async for chunk in attach(graph).astream(TOPIC, **options)] == expected
        assert (await the_run(runtime.store)).run.status is Status.COMPLETED


@pytest.mark.parametrize(
    "options",
    [{"version": "v2"}, {"stream_mode": "updates"}, {"output_keys": ["notes"]}],
    ids=str,
)
async def test_a_result_is_the_same_as_the_graphs_own(tmp_path: Path, options: Any) -> None:
    graph = map_reduce(ForeignChat(), parts=1).compile()
    async with scripted_runtime(tmp_path):
        assert await attach(graph).ainvoke(TOPIC, **options) == await graph.ainvoke(
            TOPIC, **options
        )


@pytest.mark.parametrize("mode", ["messages", ["messages", "updates"]], ids=str)
async def test_streamed_tokens_do_not_make_a_call_be_recorded_twice(
    tmp_path: Path, mode: Any
) -> None:
    graph = attach(map_reduce(ChatOrchestrate(), calls=2).compile())
    async with scripted_runtime(tmp_path) as runtime:
        chunks = [chunk async for chunk in graph.astream(TOPIC, stream_mode=mode)]
        record = await the_run(runtime.store)
    tokens = [
        payload[0].text
        for kind, payload in (
            chunks if isinstance(mode, list) else [("messages", c) for c in chunks]
        )
        if kind == "messages"
    ]
    assert tokens.count(" well") == 8
    by_path = {call.step_path for call in record.calls}
    assert len(record.calls) == len(by_path) == 8
    assert "work[2]/llm#2" in by_path


@by_model
async def test_graphs_of_plain_functions_are_recorded_like_async_ones(
    tmp_path: Path, model: Any
) -> None:
    graph = sync_chain(model).compile()
    async with scripted_runtime(tmp_path) as runtime:
        expected = await graph.ainvoke(TOPIC)
        attached = attach(graph)
        assert await attached.ainvoke(TOPIC) == expected
        assert await asyncio.to_thread(attached.invoke, TOPIC) == expected
        modes = ["updates", "values"]
        chunks = await asyncio.to_thread(lambda: list(attached.stream(TOPIC, stream_mode=modes)))
        assert chunks == [chunk async for chunk in graph.astream(TOPIC, stream_mode=modes)]
        runs = await all_runs(runtime.store)
    assert len(runs) == 3
    for record in runs:
        assert record.edges == {(0, 1)}
        assert {path for path in record.steps if "llm" not in path} == {"first", "second"}
        assert [call.step_path for call in record.calls] == ["first/llm", "second/llm"]
        assert record.still_running() == []


async def test_nodes_that_end_at_once_are_recorded_as_ended(tmp_path: Path) -> None:
    builder = StateGraph(Notes)
    for number in range(10):
        builder.add_node(f"n{number}", lambda _: {"notes": []})
        builder.add_edge(f"n{number - 1}" if number else START, f"n{number}")
    attached = attach(builder.compile())
    async with scripted_runtime(tmp_path) as runtime, asyncio.timeout(60):
        await attached.ainvoke(TOPIC)
        await asyncio.to_thread(attached.invoke, TOPIC)
        await asyncio.to_thread(lambda: list(attached.stream(TOPIC)))
        runs = await all_runs(runtime.store)
    assert [len(record.steps) for record in runs] == [10] * 3
    assert [record.still_running() for record in runs] == [[]] * 3


async def test_a_synchronous_call_on_the_runtimes_event_loop_raises_would_block(
    tmp_path: Path,
) -> None:
    graph = attach(sync_chain(ForeignChat()).compile(), name="chain")
    async with scripted_runtime(tmp_path):
        with pytest.raises(WouldBlock, match=r"chain\.invoke"):
            graph.invoke(TOPIC)


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
async def test_the_tools_of_an_agent_are_recorded_as_calls(tmp_path: Path) -> None:
    @tool
    def weather(city: str) -> str:
        """The weather in a city."""
        return f"rain in {city}"

    replies = itertools.chain(
        [json.dumps({"tool": "weather", "arguments": {"city": "Bern"}})],
        itertools.repeat(json.dumps({"answer": "take an umbrella"})),
    )
    engine = ScriptedEngine(lambda _: next(replies))
    agent = create_react_agent(ChatOrchestrate(), [weather])
    async with scripted_runtime(tmp_path, engine) as runtime:
        result = await attach(agent, deadline="60s").ainvoke({"messages": [("user", "Bern?")]})
        record = await the_run(runtime.store)
    assert result["messages"][-1].text == "take an umbrella"
    assert result["messages"][-2].text == "rain in Bern"
    assert [(call.kind, call.step_path) for call in record.calls] == [
        (CallKind.LLM, "agent/llm"),
        (CallKind.TOOL, "tools[0]/weather"),
        (CallKind.LLM, "agent#2/llm"),
    ]
    assert record.edges == {(0, 1), (1, 2)}


async def test_an_interrupted_graph_completes_its_run_and_resumes_in_another_run(
    tmp_path: Path,
) -> None:
    graph = with_approval(ForeignChat()).compile(checkpointer=InMemorySaver())
    attached = attach(graph, deadline="60s")
    here: RunnableConfig = {"configurable": {"thread_id": "a"}}
    there: RunnableConfig = {"configurable": {"thread_id": "b"}}
    async with scripted_runtime(tmp_path) as runtime:
        first = await attached.ainvoke(TOPIC, here)
        assert [each.value for each in first["__interrupt__"]] == ["publish?"]
        plain = await graph.ainvoke(TOPIC, there)
        assert {**first, "__interrupt__": 0} == {**plain, "__interrupt__": 0}
        assert attached.get_state(here).next == ("article",)
        last = await attached.ainvoke(Command(resume="yes"), here)
        assert last == await graph.ainvoke(Command(resume="yes"), there)
        assert last["report"] == "from far away, yes"
        drafted, published = await all_runs(runtime.store)
    assert drafted.run.status is published.run.status is Status.COMPLETED
    assert drafted.steps["article/draft"].status is Status.COMPLETED
    assert drafted.steps["article/approve"].status is Status.CANCELLED
    assert published.steps["article/approve"].status is Status.COMPLETED
    assert published.steps["check"].status is Status.COMPLETED
    assert [call.step_path for call in published.calls] == ["check/llm"]


async def test_tasks_of_a_functional_graph_are_steps_with_dependencies(
    tmp_path: Path,
) -> None:
    model = ForeignChat()

    @task
    async def draft(topic: str) -> str:
        return str((await model.ainvoke(topic)).text)

    @entrypoint()
    async def article(topic: str) -> str:
        parts = await asyncio.gather(draft(f"{topic} a"), draft(f"{topic} b"))
        return await draft(" ".join(parts))

    async with scripted_runtime(tmp_path) as runtime:
        assert await attach(article).ainvoke("tides") == "from far away"
        record = await the_run(runtime.store)
    assert set(record.steps) >= {
        "article",
        "article/draft",
        "article/draft#2",
        "article/draft#3",
    }
    assert record.edges == {(0, 2), (1, 2)}


async def test_an_error_of_a_node_is_raised_and_recorded(tmp_path: Path) -> None:
    def fail(state: Notes) -> dict[str, Any]:
        raise Boom("why")

    graph = StateGraph(Notes).add_node("fail", fail).add_edge(START, "fail").compile()
    async with scripted_runtime(tmp_path) as runtime:
        with pytest.raises(Boom, match="why"):
            await attach(graph).ainvoke(TOPIC)
        record = await the_run(runtime.store)
    assert (record.run.status, record.run.error_type) == (Status.FAILED, "Boom")
    assert record.steps["fail"].status is Status.FAILED


async def test_each_attempt_of_a_retried_node_is_a_step(tmp_path: Path) -> None:
    attempts = itertools.count()

    async def shaky(state: Notes) -> dict[str, Any]:
        if next(attempts) == 0:
            raise ConnectionError("once")
        return {"report": "done"}

    retry = RetryPolicy(initial_interval=0.001, jitter=False)
    graph = StateGraph(Notes).add_node("shaky", shaky, retry_policy=retry)
    async with scripted_runtime(tmp_path) as runtime:
        await attach(graph.add_edge(START, "shaky").compile()).ainvoke(TOPIC)
        record = await the_run(runtime.store)
    assert {path: step.status for path, step in record.steps.items()} == {
        "shaky": Status.FAILED,
        "shaky#2": Status.COMPLETED,
    }


async def test_a_users_config_and_callbacks_are_kept(tmp_path: Path) -> None:
    began: list[str] = []

    class Watching(BaseCallbackHandler):
        def on_chat_model_start(self, *_: Any, **__: Any) -> None:
            began.append("chat")

    def repeat(state: Notes) -> dict[str, Any]:
        return {"notes": []}

    loop = StateGraph(Notes).add_node("repeat", repeat).add_edge(START, "repeat")
    loop.add_conditional_edges("repeat", lambda _: "repeat", ["repeat", END])
    async with scripted_runtime(tmp_path) as runtime:
        graph = attach(map_reduce(ForeignChat(), parts=1).compile())
        await graph.ainvoke(TOPIC, {"callbacks": [Watching()]})
        await graph.with_config({"callbacks": [Watching()]}).ainvoke(TOPIC)
        assert len(began) == 6
        with pytest.raises(GraphRecursionError):
            await attach(loop.compile()).ainvoke(TOPIC, {"recursion_limit": 3})
        assert [len(record.calls) for record in await all_runs(runtime.store)] == [3, 3, 0]


def test_an_attached_graph_has_the_attributes_of_the_graph() -> None:
    graph = sync_chain(ForeignChat()).compile(name="chain")
    attached = attach(graph)
    assert attached.name == "chain"
    assert attached.nodes is graph.nodes
    assert attached.get_graph().to_json() == graph.get_graph().to_json()
    assert attached.get_input_schema() is not None
    with pytest.raises(AttributeError):
        attached.no_such_attribute  # noqa: B018

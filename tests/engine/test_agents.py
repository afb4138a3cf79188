"""The usual agents of LangGraph and LangChain, passed to attach() as they are, on the real engine.

The ReAct agent is in test_langgraph.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage

from orchestrator import Settings, open_runtime
from orchestrator.chat_model import ChatOrchestrate
from orchestrator.langgraph import attach
from serving.engine.clients.embedded import EmbeddedEngine
from store.records import CallKind, Status
from tests.engine.agent_graphs import QUESTION, agent, plan_and_execute, supervisor
from tests.engine.shared_engine import SharedEngine
from tests.engine.test_langgraph import in_engine, newest_run

FOREVER = 100_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(store=f"sqlite:///{tmp_path / 'runs.db'}", fit_every=0)


async def test_create_agent_runs_under_a_deadline(
    engine: EmbeddedEngine, settings: Settings
) -> None:
    async with open_runtime(settings, engine=SharedEngine(engine)) as runtime:
        result = await attach(agent(ChatOrchestrate(max_tokens=100)), deadline="5m").ainvoke(
            QUESTION
        )
        run, calls = await newest_run(runtime)
    assert isinstance(result["messages"][1], AIMessage)
    assert run.status is Status.COMPLETED
    assert calls[0].kind is CallKind.LLM
    assert [call.stage for call in calls] == list(range(len(calls)))
    assert all(call.sub_deadline_s is not None for call in calls)


async def test_a_supervisor_over_two_agents_runs_under_a_deadline(
    engine: EmbeddedEngine, settings: Settings
) -> None:
    async with open_runtime(settings, engine=SharedEngine(engine)) as runtime:
        graph = attach(supervisor(ChatOrchestrate(max_tokens=60)), deadline="5m")
        result = await graph.ainvoke(QUESTION)
        run, calls = await newest_run(runtime)
    assert result["rounds"] == 2
    assert run.status is Status.COMPLETED
    by_node = [call.step_path.split("/")[0].partition("#")[0] for call in calls]
    assert by_node[0] == "supervisor"
    assert set(by_node) - {"supervisor"} <= {"forecaster", "reporter"}
    assert by_node.count("supervisor") == 2
    models = [call for call in calls if call.kind is CallKind.LLM]
    assert len(models) == 4
    stages = [call.stage for call in models]
    assert stages == sorted(set(stages))


async def test_plan_and_execute_runs_under_a_deadline(
    engine: EmbeddedEngine, settings: Settings
) -> None:
    async with open_runtime(settings, engine=SharedEngine(engine)) as runtime:
        graph = attach(plan_and_execute(ChatOrchestrate(max_tokens=100)), deadline="5m")
        result = await graph.ainvoke({"goal": "tides"})
        run, calls = await newest_run(runtime)
    assert len(result["done"]) == 2
    assert run.status is Status.COMPLETED
    assert [(call.step_path, call.stage) for call in calls] == [
        ("plan/llm", 0),
        ("execute/llm", 1),
        ("execute#2/llm", 2),
        ("answer/llm", 3),
    ]


@pytest.mark.parametrize(
    ("make", "graph_input"),
    [
        (lambda: agent(ChatOrchestrate(max_tokens=100), calls=FOREVER), QUESTION),
        (lambda: supervisor(ChatOrchestrate(max_tokens=60), rounds=FOREVER), QUESTION),
        (
            lambda: plan_and_execute(ChatOrchestrate(max_tokens=100), forever=True),
            {"goal": "tides"},
        ),
    ],
    ids=["agent", "supervisor", "plan-and-execute"],
)
async def test_at_the_deadline_nothing_of_them_stays_in_the_engine(
    engine: EmbeddedEngine, settings: Settings, make: Any, graph_input: Any
) -> None:
    async with open_runtime(settings, engine=SharedEngine(engine)) as runtime:
        graph = attach(make(), deadline="2s", on_deadline="best_so_far")
        await graph.ainvoke(graph_input, {"recursion_limit": FOREVER})
        assert await in_engine(engine) == (0, 0)
        _, calls = await newest_run(runtime)
    assert calls

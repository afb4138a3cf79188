"""What uses the workspace of a graph: nodes, plain ones too, tools of an agent, flows around it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import InjectedToolArg
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import RetryPolicy

from orchestrator import (
    BaseChanged,
    DeadlineExceeded,
    OutsideRun,
    Workspace,
    WorkspaceLimits,
    WouldBlock,
    WrongLoop,
    current_workspace,
    flow,
    tool,
    workspace,
)
from orchestrator.langgraph import attach, run_blocking
from tests.unit.orchestrator.environment.workspace_samples import base_in, runtime_in, steps_of
from tests.unit.orchestrator.langgraph.workspace_graphs import (
    NOTHING,
    THREAD,
    Lines,
    append,
    approve,
    chain,
    checkpoint_with,
    lines_at,
    node,
    require_agreement,
)
from tests.unit.orchestrator.orchestrator_samples import the_run

pytestmark = pytest.mark.usefixtures("subprocesses")


@tool(effects="env")
async def note(line: str, ws: Annotated[Workspace | None, InjectedToolArg] = None) -> str:
    """Note a line."""
    assert ws is current_workspace() is not None
    return (await ws.shell(f"echo {line} >> lines; wc -l < lines")).stdout.strip()


class ToolModel(GenericFakeChatModel):
    def bind_tools(self, *_: Any, **__: Any) -> Any:
        return self


def agent_of(*calls: str) -> Any:
    """An agent whose model calls the tool with each line, one after the other, and then ends."""
    answers = [
        AIMessage("", tool_calls=[{"name": "note", "args": {"line": line}, "id": line}])
        for line in calls
    ]
    model = ToolModel(messages=iter([*answers, AIMessage("done")]))
    return create_agent(model, [note], checkpointer=InMemorySaver())


async def test_the_files_of_an_agents_tools_go_back_with_its_messages(tmp_path: Path) -> None:
    graph = attach(agent_of("one", "two"), workspace=base_in(tmp_path))
    async with runtime_in(tmp_path) as runtime:
        result = await graph.ainvoke({"messages": [("user", "note them")]}, THREAD)
        assert [each.content for each in result["messages"] if each.type == "tool"] == ["1", "2"]
        for snapshot in list(graph.get_state_history(THREAD)):
            tools = [m for m in snapshot.values.get("messages", []) if m.type == "tool"]
            assert len(await lines_at(graph, snapshot.config)) == len(tools)
        run = (await the_run(runtime.store)).run
    steps = {step.path: step for step in await steps_of(tmp_path, run.id)}
    noted = [step for step in steps.values() if step.workspace is not None]
    assert [step.name for step in noted] == ["note", "note"]
    assert noted[0].state_after == noted[1].state_before


@pytest.mark.parametrize("way", ["invoke", "ainvoke", "stream", "astream"])
async def test_plain_nodes_use_the_workspace_in_their_own_steps(tmp_path: Path, way: str) -> None:
    saver = InMemorySaver()
    graph = attach(
        chain("a", "b", plain=True).compile(checkpointer=saver), workspace=base_in(tmp_path)
    )
    async with runtime_in(tmp_path) as runtime:
        if way == "invoke":
            await asyncio.to_thread(graph.invoke, NOTHING, THREAD)
        elif way == "ainvoke":
            await graph.ainvoke(NOTHING, THREAD)
        elif way == "stream":
            await asyncio.to_thread(lambda: list(graph.stream(NOTHING, THREAD)))
        else:
            assert [chunk async for chunk in graph.astream(NOTHING, THREAD)]
        assert (await require_agreement(graph))[0] == ["a", "b"]
        run = (await the_run(runtime.store)).run
    steps = [step.path for step in await steps_of(tmp_path, run.id) if step.workspace is not None]
    assert steps == ["a/ws.shell", "b/ws.shell"]


async def test_run_blocking_says_what_to_do_where_it_cannot_wait(tmp_path: Path) -> None:
    async def block(_: Lines) -> Lines:
        return run_blocking(append("never"))

    graph = attach(chain(("block", block)).compile(), workspace=base_in(tmp_path))
    async with runtime_in(tmp_path):
        with pytest.raises(WouldBlock, match="await"):
            await graph.ainvoke(NOTHING)
    with pytest.raises(OutsideRun):
        run_blocking(append("never"))


async def test_another_event_loop_in_a_plain_node_is_refused(tmp_path: Path) -> None:
    def write(_: Lines) -> Lines:
        return asyncio.run(append("never"))

    graph = attach(chain(("write", write)).compile(), workspace=base_in(tmp_path))
    async with runtime_in(tmp_path):
        with pytest.raises(WrongLoop, match="make that function async"):
            await graph.ainvoke(NOTHING)


async def test_a_tool_that_fails_in_a_node_is_rolled_back(tmp_path: Path) -> None:
    is_failing = [True]

    @tool(effects="env")
    async def write(ws: Workspace) -> None:
        await ws.run("echo tried >> lines")
        if is_failing:
            is_failing.clear()
            raise ConnectionError

    async def retried(_: Lines) -> Lines:
        await write()
        return {"lines": ["tried"]}

    builder = chain("a")
    builder.add_node("retried", retried, retry_policy=RetryPolicy(initial_interval=0.01))
    builder.add_edge("a", "retried")
    graph = attach(builder.compile(checkpointer=InMemorySaver()), workspace=base_in(tmp_path))
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
        assert (await require_agreement(graph))[0] == ["a", "tried"]


async def test_at_the_deadline_the_action_in_progress_is_taken_back(tmp_path: Path) -> None:
    is_slow = [True]

    async def slow(_: Lines) -> Lines:
        ws = current_workspace()
        assert ws is not None
        await ws.run("echo slow >> lines" + ("; sleep 60" if is_slow else ""))
        return {"lines": ["slow"]}

    plain = chain("a", ("slow", slow)).compile(checkpointer=InMemorySaver())
    base = base_in(tmp_path)
    async with runtime_in(tmp_path):
        with pytest.raises(DeadlineExceeded):
            await attach(plain, workspace=base, deadline="3s").ainvoke(NOTHING, THREAD)
        graph = attach(plain, workspace=base)
        assert await lines_at(graph) == ["a"]
        is_slow.clear()
        await graph.ainvoke(None, THREAD)
        assert (await require_agreement(graph))[0] == ["a", "slow"]


async def test_nodes_without_workspace_of_their_graph_use_that_of_the_flow(tmp_path: Path) -> None:
    graph, base = attach(chain("a", "b").compile()), base_in(tmp_path)

    @flow
    async def body() -> str:
        async with workspace(base) as ws:
            await graph.ainvoke(NOTHING)
            return await ws.read("lines")

    async with runtime_in(tmp_path) as runtime:
        assert (await runtime.run(body)).value == "a\nb\n"


async def test_a_graph_in_a_resumed_flow_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    is_failing = [True]

    async def fail(_: Lines) -> Lines:
        written = await append("c")
        if is_failing:
            raise ConnectionError
        return written

    base, saver = base_in(tmp_path), InMemorySaver()
    builder = chain("a", "b", ("c", fail), "d")
    graph = attach(builder.compile(checkpointer=saver), workspace=base, name="graph")

    @flow
    async def body() -> list[str]:
        given = None if graph.get_state(THREAD).values else NOTHING
        return list((await graph.ainvoke(given, THREAD))["lines"])

    async with runtime_in(tmp_path) as runtime:
        with pytest.raises(ConnectionError):
            await runtime.run(body.options(run_id="flow"))
    is_failing.clear()
    async with runtime_in(tmp_path) as runtime:
        assert (await runtime.resume("flow", body)).value == ["a", "b", "c", "d"]
        assert await lines_at(graph) == ["a", "b", "c", "d"]


async def test_what_is_done_at_a_checkpoint_does_not_reach_the_graph(tmp_path: Path) -> None:
    graph = attach(
        chain("a", "b").compile(checkpointer=InMemorySaver()), workspace=base_in(tmp_path)
    )
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
        async with graph.workspace_at(THREAD) as ws:
            assert (await ws.changeset()).paths == ("lines",)
            assert (await ws.diff()).paths == ()
            await ws.run("rm lines")
        assert await lines_at(graph) == ["a", "b"]
        assert await lines_at(graph, await checkpoint_with(graph, "a")) == ["a"]


async def test_a_node_that_applies_takes_its_thread_along(tmp_path: Path) -> None:
    async def publish(_: Lines) -> Lines:
        ws = current_workspace()
        assert ws is not None
        await ws.apply()
        return await append("published")

    base = base_in(tmp_path)
    graph = attach(
        chain("a", ("publish", publish), "b").compile(checkpointer=InMemorySaver()), workspace=base
    )
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
        assert (base / "lines").read_text() == "a\n"
        assert await lines_at(graph) == ["a", "published", "b"]
        await graph.ainvoke(None, await checkpoint_with(graph, "a", "published"))
        assert await lines_at(graph) == ["a", "published", "b"]


async def test_a_thread_whose_files_were_applied_from_outside_ends_and_another_begins_with_them(
    tmp_path: Path,
) -> None:
    base = base_in(tmp_path)
    graph = attach(chain("a", "b").compile(checkpointer=InMemorySaver()), workspace=base)
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
        async with graph.workspace_at(await checkpoint_with(graph, "a")) as ws:
            await ws.apply()
        assert (base / "lines").read_text() == "a\n"
        with pytest.raises(BaseChanged, match="lines"):
            await graph.ainvoke(NOTHING, THREAD)
        other: Any = {"configurable": {"thread_id": "two"}}
        await graph.ainvoke(NOTHING, other)
        assert await lines_at(graph, other) == ["a", "a", "b"]


async def test_options_of_the_workspace_hold_for_each_invocation(tmp_path: Path) -> None:
    async def look(_: Lines) -> Lines:
        ws = current_workspace()
        assert ws is not None
        return {"lines": [ws.name, (await ws.run("ulimit -f")).stdout.strip()]}

    given = workspace(
        base_in(tmp_path), name="mine", limits=WorkspaceLimits(file_bytes=1024 * 1024)
    )
    graph = attach(chain(("look", look)).compile(), workspace=given)
    async with runtime_in(tmp_path):
        for _ in range(2):
            assert (await graph.ainvoke(NOTHING))["lines"] == ["mine", "1024"]
        bound = graph.with_config({"tags": ["bound"]})
        assert (await bound.ainvoke(NOTHING))["lines"] == ["mine", "1024"]


async def test_the_states_of_checkpoints_are_those_of_recorded_steps(tmp_path: Path) -> None:
    graph = attach(
        chain(("a", node("a")), ("ask", approve)).compile(checkpointer=InMemorySaver()),
        workspace=base_in(tmp_path),
    )
    async with runtime_in(tmp_path) as runtime:
        await graph.ainvoke(NOTHING, THREAD)
        named = {each.metadata["orchestrate_workspace"] for each in graph.get_state_history(THREAD)}
        run = (await the_run(runtime.store)).run
    recorded = {step.state_after for step in await steps_of(tmp_path, run.id)}
    assert len(named) == 2
    assert named <= recorded

"""Graphs with a workspace: files and shell go back with the checkpoint."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import Any

import pytest
from langchain_core.callbacks import BaseCallbackHandler
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.func import entrypoint, task
from langgraph.graph import END, START, StateGraph
from langgraph.types import Command, interrupt

from orchestrator import current_workspace, workspace
from orchestrator.environment.environments import Backend
from orchestrator.langgraph import attach
from tests.unit.orchestrator.environment.workspace_samples import (
    base_in,
    require_backend,
    runtime_in,
)
from tests.unit.orchestrator.langgraph.workspace_graphs import (
    NOTHING,
    THREAD,
    Lines,
    OpenSaver,
    append,
    approve,
    awaited,
    chain,
    checkpoint_with,
    from_a_thread,
    in_async_sqlite,
    in_memory,
    in_sqlite,
    lines_at,
    node,
    overwrite,
    require_agreement,
)

pytestmark = pytest.mark.usefixtures("subprocesses")

WAYS = [
    pytest.param(in_memory, awaited, id="memory-async"),
    pytest.param(in_memory, from_a_thread, id="memory-sync"),
    pytest.param(in_sqlite, from_a_thread, id="sqlite-sync"),
    pytest.param(in_async_sqlite, awaited, id="sqlite-async"),
]


@pytest.mark.parametrize(("open_saver", "way"), WAYS)
@pytest.mark.parametrize("durability", ["sync", "async"])
async def test_files_and_state_of_every_checkpoint_agree(
    tmp_path: Path, open_saver: OpenSaver, way: Any, durability: str
) -> None:
    base, plain = base_in(tmp_path), way is from_a_thread
    async with open_saver(tmp_path) as saver, runtime_in(tmp_path):
        graph = attach(chain("a", "b", plain=plain).compile(checkpointer=saver), workspace=base)
        await way(graph)(NOTHING, THREAD, durability=durability)
        assert await require_agreement(graph) == [["a", "b"], ["a"], [], []]
        earlier = await checkpoint_with(graph, "a")
        result = await way(graph)(None, earlier, durability=durability)
        assert result["lines"] == await lines_at(graph) == ["a", "b"]
        await way(graph)(NOTHING, THREAD, durability=durability)
        assert (await require_agreement(graph))[0] == ["a", "b", "a", "b"]
    assert list(base.iterdir()) == []


async def test_the_shell_goes_back_too(tmp_path: Path) -> None:
    async def look(_: Lines) -> Lines:
        ws = current_workspace()
        assert ws is not None
        shown = (await ws.shell("echo ${PWD##*/} $SEEN; SEEN=yes; mkdir -p in; cd in")).stdout
        return {"lines": [shown.strip()]}

    base = base_in(tmp_path)
    graph = attach(
        chain(("one", look), ("two", look)).compile(checkpointer=InMemorySaver()), workspace=base
    )
    async with runtime_in(tmp_path):
        assert (await graph.ainvoke(NOTHING, THREAD))["lines"] == ["base", "in yes"]
        earlier = await checkpoint_with(graph, "base")
        assert (await graph.ainvoke(None, earlier))["lines"] == ["base", "in yes"]


@pytest.mark.parametrize("backend", ["overlay", "copies"])
async def test_files_go_back_on_either_backend(
    tmp_path: Path, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATE_STORE", f"sqlite:///{tmp_path / 'outside.db'}")
    await require_backend(tmp_path, backend)
    given = workspace(base_in(tmp_path), backend=backend)
    graph = attach(chain("a", "b").compile(checkpointer=InMemorySaver()), workspace=given)
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
        await graph.ainvoke(None, await checkpoint_with(graph, "a"))
        assert (await require_agreement(graph))[0] == ["a", "b"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
async def test_a_graph_continues_after_a_question_in_another_runtime(
    tmp_path: Path, durability: Any
) -> None:
    base, saver = base_in(tmp_path), InMemorySaver()

    def build() -> Any:
        graph = chain("a", ("approve", approve), "b").compile(checkpointer=saver)
        return attach(graph, workspace=base)

    async with runtime_in(tmp_path):
        await build().ainvoke(NOTHING, THREAD, durability=durability)
        assert await lines_at(build()) == ["a"]  # what the node did before it asked is taken back
    async with runtime_in(tmp_path):
        answer = Command(resume="final")
        result = await build().ainvoke(answer, THREAD, durability=durability)
        assert result["lines"] == ["a", "final", "b"]
        assert (await require_agreement(build()))[0] == ["a", "final", "b"]


@pytest.mark.parametrize("by", ["attached", "plain"])
async def test_an_updated_state_keeps_the_files_of_its_checkpoint(tmp_path: Path, by: str) -> None:
    plain = chain("a", "b", "c").compile(checkpointer=InMemorySaver())
    graph = attach(plain, workspace=base_in(tmp_path))
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
        earlier = await checkpoint_with(graph, "a")
        updater: Any = graph if by == "attached" else plain
        updated = await updater.aupdate_state(earlier, {"lines": ["by hand"]})
        assert await lines_at(graph, updated) == ["a"]
        assert (await graph.ainvoke(None, updated))["lines"] == ["a", "by hand", "b", "c"]
        assert await lines_at(graph) == ["a", "b", "c"]


async def test_a_copied_checkpoint_has_the_files_of_the_one_that_was_copied(tmp_path: Path) -> None:
    graph = attach(
        chain("a", "b").compile(checkpointer=InMemorySaver()), workspace=base_in(tmp_path)
    )
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
        copied = graph.update_state(await checkpoint_with(graph, "a"), None, as_node="__copy__")
        assert graph.get_state(copied).values["lines"] == await lines_at(graph, copied) == ["a"]
        assert (await graph.ainvoke(None, copied))["lines"] == await lines_at(graph) == ["a", "b"]


async def test_branches_of_a_thread_do_not_see_each_others_files(tmp_path: Path) -> None:
    names = iter(["first", "second"])

    async def write(_: Lines) -> Lines:
        return await append(next(names))

    graph = attach(
        chain("a", ("write", write), "b").compile(checkpointer=InMemorySaver()),
        workspace=base_in(tmp_path),
    )
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
        await graph.ainvoke(None, await checkpoint_with(graph, "a"))
        for name in ("first", "second"):
            end = await checkpoint_with(graph, "a", name, "b")
            assert await lines_at(graph, end) == ["a", name, "b"]
        other = {"configurable": {"thread_id": "two"}}
        names = iter(["third"])
        await graph.ainvoke(NOTHING, other)
        assert await lines_at(graph, other) == ["a", "third", "b"]


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
@pytest.mark.parametrize("called", ["as a node", "in a node"])
async def test_a_subgraph_that_asks_keeps_what_its_finished_supersteps_did(
    tmp_path: Path, called: str, durability: Any
) -> None:
    inner = chain("x", "y", ("approve", approve)).compile()
    calls: list[Any] = []

    async def delegate(state: Lines) -> Lines:
        return await inner_graphs[len(calls)].ainvoke(state)

    inner_graphs = [inner]  # so that LangGraph does not find it in the function
    outer = chain("a", ("sub", inner if called == "as a node" else delegate), "b")
    graph = attach(outer.compile(checkpointer=InMemorySaver()), workspace=base_in(tmp_path))
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD, durability=durability)
        assert await lines_at(graph) == ["a", "x", "y"]
        await graph.ainvoke(Command(resume="z"), THREAD, durability=durability)
        assert await lines_at(graph) == ["a", "x", "y", "z", "b"]


async def test_time_travel_to_a_checkpoint_of_a_subgraph_brings_back_its_files(
    tmp_path: Path,
) -> None:
    inner = chain("x", ("approve", approve)).compile()
    graph = attach(
        chain("a", ("sub", inner), "b").compile(checkpointer=InMemorySaver()),
        workspace=base_in(tmp_path),
    )
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
        [asking] = graph.get_state(THREAD, subgraphs=True).tasks
        assert await lines_at(graph, asking.state.config) == ["a", "x"]
        subgraph = asking.state.config["configurable"]["checkpoint_ns"]
        within: Any = {"configurable": {"thread_id": "one", "checkpoint_ns": subgraph}}
        assert await lines_at(graph, within) == ["a", "x"]
        history = list(graph.get_state_history(within))
        [config] = [each.config for each in history if each.next == ("x",)]
        assert await lines_at(graph, config) == ["a"]
        await graph.ainvoke(None, config)
        assert await lines_at(graph) == ["a", "x"]
        assert (await graph.ainvoke(Command(resume="z"), THREAD))["lines"][-1] == "b"
        assert await lines_at(graph) == ["a", "x", "z", "b"]


async def test_of_parallel_nodes_those_that_ended_keep_their_files(tmp_path: Path) -> None:
    is_failing, ended, done = [True], asyncio.Event(), list[str]()

    class Listener(BaseCallbackHandler):
        def on_chain_end(self, outputs: Any, **_: Any) -> None:
            if outputs == {"lines": ["first"]}:
                ended.set()

    async def first(_: Lines) -> Lines:
        done.append("first")
        return await append("first")

    async def second(_: Lines) -> Lines:
        await ended.wait()
        await append("tried")
        if is_failing.pop():
            raise ConnectionError
        return await overwrite("tried", "second")

    builder = chain("a")
    for name, body in (("first", first), ("second", second)):
        builder.add_node(name, body)
        builder.add_edge("a", name)
    graph = attach(builder.compile(checkpointer=InMemorySaver()), workspace=base_in(tmp_path))
    async with runtime_in(tmp_path):
        with pytest.raises(ConnectionError):
            await graph.ainvoke(NOTHING, {**THREAD, "callbacks": [Listener()]})
        assert await lines_at(graph) == ["a", "first"]
        assert await lines_at(graph, await checkpoint_with(graph, "a")) == ["a"]
        is_failing.append(False)
        assert (await graph.ainvoke(None, THREAD))["lines"] == ["a", "first", "second"]
        assert done == ["first"]
        assert await lines_at(graph) == ["a", "first", "second"]


async def test_a_new_input_drops_what_an_unfinished_superstep_did(tmp_path: Path) -> None:
    is_failing = [True]

    async def fail(_: Lines) -> Lines:
        await append("lost")
        if is_failing.pop():
            raise ConnectionError
        return {"lines": ["lost"]}

    graph = attach(
        chain("a", ("fail", fail)).compile(checkpointer=InMemorySaver()),
        workspace=base_in(tmp_path),
    )
    async with runtime_in(tmp_path):
        with pytest.raises(ConnectionError):
            await graph.ainvoke(NOTHING, THREAD)
        is_failing.append(False)
        await graph.ainvoke(NOTHING, THREAD)
        assert (await require_agreement(graph))[0] == ["a", "a", "lost"]


async def test_tasks_of_an_entrypoint_that_ended_keep_their_files(tmp_path: Path) -> None:
    @task
    async def write(line: str) -> str:
        await append(line)
        return line

    @entrypoint(checkpointer=InMemorySaver())
    async def work(lines: list[str]) -> list[str]:
        written = [await write(line) for line in lines]
        return [*written, await write(interrupt("which?"))]

    graph = attach(work, workspace=base_in(tmp_path))
    async with runtime_in(tmp_path):
        await graph.ainvoke(["a", "b"], THREAD)
        assert await lines_at(graph) == ["a", "b"]
        assert await graph.ainvoke(Command(resume="c"), THREAD) == ["a", "b", "c"]
        assert await lines_at(graph) == ["a", "b", "c"]


class StopsSaving(InMemorySaver):
    """A saver whose n-th and further calls fail, as after a crash; before they save or after."""

    def __init__(self, calls: int, *, after: bool) -> None:
        super().__init__()
        self.calls: int | None = calls
        self.after = after

    def put(self, *args: Any) -> Any:
        return self._save(super().put, *args)

    def put_writes(self, *args: Any) -> None:
        self._save(super().put_writes, *args)

    def _save(self, save: Any, *args: Any) -> Any:
        if self.calls is not None:
            self.calls -= 1
            if self.calls < 0 or (self.calls == 0 and not self.after):
                raise ConnectionError
        saved = save(*args)
        if self.calls == 0:
            raise ConnectionError
        return saved


@pytest.mark.slow
@pytest.mark.parametrize(("durability", "after"), [("sync", False), ("async", True)])
async def test_files_and_state_agree_wherever_saving_was_cut_off(
    tmp_path: Path, durability: Any, after: bool
) -> None:
    base, expected = base_in(tmp_path), ["a", "x", "y", "b"]
    async with runtime_in(tmp_path):
        for calls in itertools.count(1, 2):
            saver = StopsSaving(calls, after=after)
            inner = chain("x", "y").compile()
            plain = chain("a", ("sub", inner), "b").compile(checkpointer=saver)
            graph = attach(plain, workspace=base)
            try:
                await graph.ainvoke(NOTHING, THREAD, durability=durability)
                break
            except ConnectionError:
                saver.calls = None
            is_begun = bool(graph.get_state(THREAD).metadata)
            await graph.ainvoke(None if is_begun else NOTHING, THREAD)
            assert (await lines_at(graph), calls) == (expected, calls)
    assert calls > 20


async def test_a_loop_of_nodes_goes_back_to_any_round(tmp_path: Path) -> None:
    async def count(state: Lines) -> Lines:
        return await append(str(len(state["lines"])))

    builder = StateGraph(Lines).add_node("count", count).add_edge(START, "count")
    builder.add_conditional_edges(
        "count", lambda state: END if len(state["lines"]) == 4 else "count"
    )
    graph = attach(builder.compile(checkpointer=InMemorySaver()), workspace=base_in(tmp_path))
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
        await graph.ainvoke(None, await checkpoint_with(graph, "0", "1"))
        assert (await require_agreement(graph))[0] == ["0", "1", "2", "3"]


async def test_breakpoints_stop_between_states_that_agree(tmp_path: Path) -> None:
    graph = attach(
        chain("a", "b", "c").compile(
            checkpointer=InMemorySaver(), interrupt_before=["b"], interrupt_after=["b"]
        ),
        workspace=base_in(tmp_path),
    )
    async with runtime_in(tmp_path):
        for expected in (["a"], ["a", "b"], ["a", "b", "c"]):
            await graph.ainvoke(NOTHING if expected == ["a"] else None, THREAD)
            assert (await require_agreement(graph))[0] == expected


async def test_without_a_checkpointer_each_invocation_begins_with_the_folder(
    tmp_path: Path,
) -> None:
    base = base_in(tmp_path)

    async def show(_: Lines) -> Lines:
        ws = current_workspace()
        assert ws is not None
        return {"lines": (await ws.read("lines")).split()}

    graph = attach(chain(("a", node("a")), ("show", show)).compile(), workspace=base)
    async with runtime_in(tmp_path):
        for _ in range(2):
            assert (await graph.ainvoke(NOTHING))["lines"] == ["a", "a"]
        assert current_workspace() is None
    assert list(base.iterdir()) == []

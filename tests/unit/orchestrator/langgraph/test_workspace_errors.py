"""What a graph with a workspace refuses, and what it says."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from langgraph.checkpoint.memory import InMemorySaver

from orchestrator import BaseChanged, BaseRefused, StateLost, workspace
from orchestrator.langgraph import attach
from tests.unit.orchestrator.environment.workspace_samples import base_in, runtime_in
from tests.unit.orchestrator.langgraph.workspace_graphs import (
    NOTHING,
    THREAD,
    Lines,
    append,
    chain,
    checkpoint_with,
    lines_at,
    require_agreement,
)

pytestmark = pytest.mark.usefixtures("subprocesses")


async def test_a_lost_state_fails_the_invocation_before_any_node_runs(tmp_path: Path) -> None:
    ran = list[str]()

    async def write(_: Lines) -> Lines:
        ran.append("write")
        return await append("b")

    graph = attach(
        chain("a", ("write", write)).compile(
            checkpointer=InMemorySaver(), interrupt_before=["write"]
        ),
        workspace=base_in(tmp_path),
    )
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
    shutil.rmtree(tmp_path / "store.environments" / "states")
    async with runtime_in(tmp_path):
        with pytest.raises(StateLost, match="not stored here"):
            await graph.ainvoke(None, THREAD)
        with pytest.raises(StateLost):
            await lines_at(graph)
    assert ran == []


async def test_a_folder_that_was_changed_meanwhile_is_named(tmp_path: Path) -> None:
    base = base_in(tmp_path, mine="1\n")
    graph = attach(
        chain("a", "b").compile(checkpointer=InMemorySaver(), interrupt_before=["b"]),
        workspace=base,
    )
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
        (base / "mine").write_text("22\n")
        with pytest.raises(BaseChanged, match="mine"):
            await graph.ainvoke(None, THREAD)
        (base / "mine").write_text("1\n")


async def test_a_state_of_another_folder_is_refused(tmp_path: Path) -> None:
    plain = chain("a", "b").compile(checkpointer=InMemorySaver(), interrupt_before=["b"])
    other = tmp_path / "other"
    other.mkdir()
    async with runtime_in(tmp_path):
        await attach(plain, workspace=base_in(tmp_path)).ainvoke(NOTHING, THREAD)
        with pytest.raises(BaseRefused, match="is one of"):
            await attach(plain, workspace=other).ainvoke(None, THREAD)


async def test_a_checkpoint_made_without_a_workspace_begins_with_the_folder_and_warns(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plain = chain(("a", _nothing), "b", "c").compile(
        checkpointer=InMemorySaver(), interrupt_before=["b"]
    )
    graph = attach(plain, workspace=base_in(tmp_path))
    async with runtime_in(tmp_path):
        await plain.ainvoke(NOTHING, THREAD)
        with caplog.at_level(logging.WARNING, "orchestrate"):
            await graph.ainvoke(None, THREAD)
        assert [record.args for record in caplog.records] == [
            (plain.get_state(await checkpoint_with(graph)).config["configurable"]["checkpoint_id"],)
        ]
        assert (await require_agreement(graph))[0] == ["b", "c"]


async def test_checkpoints_made_without_the_workspace_in_between_keep_its_files(
    tmp_path: Path,
) -> None:
    plain = chain("a", ("between", _nothing), "b").compile(
        checkpointer=InMemorySaver(), interrupt_before=["between", "b"]
    )
    graph = attach(plain, workspace=base_in(tmp_path))
    async with runtime_in(tmp_path):
        await graph.ainvoke(NOTHING, THREAD)
        await plain.ainvoke(None, THREAD)
        await graph.ainvoke(None, THREAD)
        assert (await require_agreement(graph))[0] == ["a", "b"]


async def test_a_graph_within_another_ones_checkpoints_is_refused(tmp_path: Path) -> None:
    inner = attach(chain("a").compile(), workspace=base_in(tmp_path))
    outer: Any = chain(("inner", inner)).compile(checkpointer=InMemorySaver())
    async with runtime_in(tmp_path):
        with pytest.raises(ValueError, match="attach that one with workspace="):
            await outer.ainvoke(NOTHING, THREAD)
        with pytest.raises(ValueError, match="attach that one with workspace="):
            await attach(outer).ainvoke(NOTHING, THREAD)
        without: Any = chain(("inner", inner)).compile()
        assert (await without.ainvoke(NOTHING))["lines"] == ["a"]


async def test_what_cannot_be_a_workspace_is_refused_when_the_graph_is_attached(
    tmp_path: Path,
) -> None:
    plain, base = chain("a").compile(), base_in(tmp_path)
    async with runtime_in(tmp_path), workspace(base) as begun:
        with pytest.raises(ValueError, match="without `async with`"):
            attach(plain, workspace=begun)
        with pytest.raises(TypeError):
            attach(plain, workspace=lambda: base)  # type: ignore[arg-type]


async def test_workspace_at_says_what_it_lacks(tmp_path: Path) -> None:
    base = base_in(tmp_path)
    with pytest.raises(ValueError, match="without workspace="):
        attach(chain("a").compile()).workspace_at(THREAD)
    async with runtime_in(tmp_path):
        with pytest.raises(ValueError, match="no checkpointer"):
            await lines_at(attach(chain("a").compile(), workspace=base))
        graph = attach(chain("a").compile(checkpointer=InMemorySaver()), workspace=base)
        for config in (THREAD, {}):
            with pytest.raises(LookupError, match="no checkpoint"):
                await lines_at(graph, config)
        with pytest.raises(ValueError, match="thread_id"):
            await graph.ainvoke(NOTHING)


async def _nothing(_: Lines) -> Lines:
    return NOTHING

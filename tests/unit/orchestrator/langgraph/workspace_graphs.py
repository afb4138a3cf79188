"""Graphs whose nodes write files, and checks that files and state agree."""

from __future__ import annotations

import asyncio
import importlib
import operator
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Annotated, Any

import pytest
from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, StateGraph
from langgraph.types import interrupt
from typing_extensions import TypedDict

from orchestrator import current_workspace
from orchestrator.langgraph import run_blocking
from orchestrator.langgraph.attach import AttachedGraph

Saver = BaseCheckpointSaver[Any]
Invoke = Callable[..., Awaitable[Any]]


class Lines(TypedDict):
    lines: Annotated[list[str], operator.add]


NOTHING: Lines = {"lines": []}
THREAD: Any = {"configurable": {"thread_id": "one"}}


async def append(line: str) -> Lines:
    """Append a line to the workspace's file and to the graph's state."""
    ws = current_workspace()
    assert ws is not None
    (await ws.shell(f"echo {line} >> lines")).check()
    return {"lines": [line]}


def node(line: str, *, plain: bool = False) -> Any:
    """A node that appends a line; a plain function, or an async one."""

    async def write(_: Lines) -> Lines:
        return await append(line)

    def write_plainly(_: Lines) -> Lines:
        return run_blocking(append(line))

    return write_plainly if plain else write


async def overwrite(old: str, new: str) -> Lines:
    """Replace a line of the file, as another one of the graph's state."""
    ws = current_workspace()
    assert ws is not None
    (await ws.run(["sed", "-i", f"s/{old}/{new}/", "lines"])).check()
    return {"lines": [new]}


async def approve(_: Lines) -> Lines:
    """A node that writes a draft, asks, and puts the answer in its place."""
    await append("draft")
    return await overwrite("draft", interrupt("which?"))


def chain(*nodes: str | tuple[str, Any], plain: bool = False) -> Any:
    """Nodes one after another: a name for one that appends it, or a name and the node itself."""
    builder, last = StateGraph(Lines), START
    for each in nodes:
        name, body = (each, node(each, plain=plain)) if isinstance(each, str) else each
        builder.add_node(name, body)
        builder.add_edge(last, name)
        last = name
    return builder


async def lines_at(graph: AttachedGraph, config: Any = THREAD) -> list[str]:
    """The lines of the workspace's file at a checkpoint."""
    async with graph.workspace_at(config) as ws:
        return (await ws.run("cat lines || true")).stdout.split()


async def require_agreement(graph: AttachedGraph, config: Any = THREAD) -> list[list[str]]:
    """Files and state agree at each checkpoint of the thread; the lines of each, the last first."""
    found = []
    for snapshot in await asyncio.to_thread(lambda: list(graph.get_state_history(config))):
        lines = snapshot.values.get("lines", [])
        assert await lines_at(graph, snapshot.config) == lines, snapshot.metadata
        found.append(lines)
    return found


async def checkpoint_with(graph: AttachedGraph, *lines: str) -> Any:
    """The config of the newest checkpoint of the thread with these lines."""
    for snapshot in await asyncio.to_thread(lambda: list(graph.get_state_history(THREAD))):
        if snapshot.values.get("lines") == list(lines):
            return snapshot.config
    raise AssertionError(f"no checkpoint has {lines}")


@asynccontextmanager
async def in_memory(_: Path) -> AsyncIterator[Saver]:
    yield InMemorySaver()


@asynccontextmanager
async def in_sqlite(folder: Path) -> AsyncIterator[Saver]:
    sqlite = _module("langgraph.checkpoint.sqlite")
    with sqlite.SqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
        yield saver


@asynccontextmanager
async def in_async_sqlite(folder: Path) -> AsyncIterator[Saver]:
    sqlite = _module("langgraph.checkpoint.sqlite.aio")
    async with sqlite.AsyncSqliteSaver.from_conn_string(str(folder / "checkpoints.db")) as saver:
        yield saver


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError:
        pytest.skip("langgraph-checkpoint-sqlite is not installed")


OpenSaver = Callable[[Path], AbstractAsyncContextManager[Saver]]


def awaited(graph: AttachedGraph) -> Invoke:
    """Invoke a graph by its async method."""
    return graph.ainvoke


def from_a_thread(graph: AttachedGraph) -> Invoke:
    """Invoke a graph by its synchronous method."""

    async def invoke(*args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(graph.invoke, *args, **kwargs)

    return invoke

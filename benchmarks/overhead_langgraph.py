"""Empty steps and a growing conversation, as graphs of LangGraph with its AsyncSqliteSaver."""

from __future__ import annotations

import operator
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any, TypedDict

from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send

from benchmarks.conversation import turns
from benchmarks.overhead import Flow, timed


class Counting(TypedDict):
    """How many steps were made."""

    done: int


class Adding(TypedDict):
    """How many branches ended."""

    done: Annotated[int, operator.add]


class Talking(TypedDict):
    """What was said."""

    messages: Annotated[list[str], operator.add]


def flows(durability: str) -> dict[str, Flow]:
    """A chain, branches, a conversation: "" by default, "sync", or "none": no checkpointer."""

    async def chain(file: Path, count: int) -> float:
        graph = StateGraph(Counting)
        graph.add_node("step", lambda state: {"done": state["done"] + 1})
        graph.add_edge(START, "step")
        graph.add_conditional_edges("step", lambda state: END if state["done"] >= count else "step")
        return await _seconds(graph, {"done": 0}, file, durability, limit=count + 5)

    async def branches(file: Path, count: int) -> float:
        graph = StateGraph(Adding)
        graph.add_node("branch", lambda state: {"done": 1})
        graph.add_conditional_edges(
            START, lambda state: [Send("branch", {"done": 0}) for _ in range(count)]
        )
        return await _seconds(graph, {"done": 0}, file, durability, limit=count + 5)

    async def conversation(file: Path, count: int) -> float:
        said = turns()
        graph = StateGraph(Talking)
        graph.add_node("turn", lambda state: {"messages": [said[len(state["messages"])]]})
        graph.add_edge(START, "turn")
        graph.add_conditional_edges(
            "turn", lambda state: END if len(state["messages"]) >= count else "turn"
        )
        return await _seconds(graph, {"messages": []}, file, durability, limit=count + 5)

    return {"chain": chain, "branches": branches, "conversation": conversation}


async def _seconds(graph: Any, start: Any, file: Path, durability: str, *, limit: int) -> float:
    saving = durability != "none"
    async with AsyncSqliteSaver.from_conn_string(str(file)) if saving else nullcontext() as saver:
        compiled = graph.compile(checkpointer=saver)
        options = {"durability": durability} if durability == "sync" else {}
        config = {"configurable": {"thread_id": "measured"}, "recursion_limit": limit}
        if saving:
            await saver.setup()
        return await timed(lambda: compiled.ainvoke(start, config, **options))

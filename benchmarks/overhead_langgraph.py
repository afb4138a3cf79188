"""Empty steps and a growing conversation, as LangGraph graphs with AsyncSqliteSaver."""

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


class ChainState(TypedDict):
    """The number of completed steps."""

    done: int


class BranchesState(TypedDict):
    """The number of completed branches."""

    done: Annotated[int, operator.add]


class ConversationState(TypedDict):
    """The conversation so far."""

    messages: Annotated[list[str], operator.add]


def flows(durability: str) -> dict[str, Flow]:
    """A chain, branches, a conversation.

    Args:
        durability: "" (the default), "sync", or "none": no checkpointer.
    """

    async def chain(file: Path, count: int) -> float:
        graph = StateGraph(ChainState)
        graph.add_node("step", lambda state: {"done": state["done"] + 1})
        graph.add_edge(START, "step")
        graph.add_conditional_edges("step", lambda state: END if state["done"] >= count else "step")
        return await _seconds(graph, {"done": 0}, file, durability, limit=count + 5)

    async def branches(file: Path, count: int) -> float:
        graph = StateGraph(BranchesState)
        graph.add_node("branch", lambda state: {"done": 1})
        graph.add_conditional_edges(
            START, lambda state: [Send("branch", {"done": 0}) for _ in range(count)]
        )
        return await _seconds(graph, {"done": 0}, file, durability, limit=count + 5)

    async def conversation(file: Path, count: int) -> float:
        texts = turns()
        graph = StateGraph(ConversationState)
        graph.add_node("turn", lambda state: {"messages": [texts[len(state["messages"])]]})
        graph.add_edge(START, "turn")
        graph.add_conditional_edges(
            "turn", lambda state: END if len(state["messages"]) >= count else "turn"
        )
        return await _seconds(graph, {"messages": []}, file, durability, limit=count + 5)

    return {"chain": chain, "branches": branches, "conversation": conversation}


async def _seconds(graph: Any, start: Any, file: Path, durability: str, *, limit: int) -> float:
    is_saved = durability != "none"
    async with AsyncSqliteSaver.from_conn_string(str(file)) if is_saved else nullcontext() as saver:
        compiled = graph.compile(checkpointer=saver)
        options = {"durability": durability} if durability == "sync" else {}
        config = {"configurable": {"thread_id": "measured"}, "recursion_limit": limit}
        if is_saved:
            await saver.setup()
        return await timed(lambda: compiled.ainvoke(start, config, **options))

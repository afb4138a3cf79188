"""Agents as LangGraph's and LangChain's tutorials make them, over any chat model.

The demo model's text is random, so each graph bounds its own length.
"""

from __future__ import annotations

import operator
from typing import Annotated, Any, Literal

from langchain.agents import create_agent
from langchain.agents.middleware import ModelCallLimitMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.tools import tool
from langgraph.graph import END, START, MessagesState, StateGraph
from langgraph.types import Command
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

QUESTION = {"messages": [("user", "Bern?")]}


@tool
def weather(city: Literal["Bern", "Oslo"]) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def agent(model: BaseChatModel, name: str = "agent", calls: int = 2) -> Any:
    """LangChain's agent, which makes at most this many calls of its model."""
    limit: Any = ModelCallLimitMiddleware(run_limit=calls, exit_behavior="end")
    return create_agent(model, [weather], name=name, middleware=[limit])


class Route(BaseModel):
    """Who works next."""

    worker: Literal["forecaster", "reporter"]


class Team(MessagesState):
    """What the supervisor and its agents share."""

    rounds: int


def supervisor(model: BaseChatModel, rounds: int = 2) -> Any:
    """A supervisor that chooses one of two agents, this many times."""
    router = model.with_structured_output(Route)

    async def choose(state: Team) -> Command[str]:
        done = state.get("rounds", 0)
        if done == rounds:
            return Command(goto=END)
        route: Any = await router.ainvoke(f"Round {done}: who works next?")
        return Command(goto=route.worker, update={"rounds": done + 1})

    builder = StateGraph(Team)
    builder.add_node("supervisor", choose, destinations=("forecaster", "reporter", END))
    for name in ("forecaster", "reporter"):
        builder.add_node(name, _answering(agent(model, name, calls=1)))
        builder.add_edge(name, "supervisor")
    builder.add_edge(START, "supervisor")
    return builder.compile()


def _answering(worker: Any) -> Any:
    """A node that runs an agent on the question, and keeps its last message."""

    async def work(state: Team) -> dict[str, Any]:
        result = await worker.ainvoke({"messages": state["messages"][:1]})
        return {"messages": result["messages"][-1:]}

    return work


Line = Annotated[str, Field(min_length=1, max_length=12)]


class Plan(BaseModel):
    """Two steps towards the goal."""

    steps: Annotated[list[Line], Field(min_length=2, max_length=2)]


class Progress(TypedDict, total=False):
    """The state of plan-and-execute."""

    goal: str
    steps: list[str]
    done: Annotated[list[str], operator.add]
    answer: str


def plan_and_execute(model: BaseChatModel, *, blocking: bool = False, forever: bool = False) -> Any:
    """Plans, executes one step after another, and answers.

    Args:
        blocking: execute by the model's `invoke`, in threads of the nodes.
        forever: never run out of steps.
    """
    planner = model.with_structured_output(Plan)

    async def plan(state: Progress) -> dict[str, Any]:
        made: Any = await planner.ainvoke(f"Plan: {state['goal']}")
        return {"steps": made.steps}

    async def execute(state: Progress) -> dict[str, Any]:
        number = len(state.get("done", []))
        step = state["steps"][number % len(state["steps"])]
        return {"done": [str((await model.ainvoke(f"Do: {step}")).text)]}

    def execute_in_thread(state: Progress) -> dict[str, Any]:
        number = len(state.get("done", []))
        step = state["steps"][number % len(state["steps"])]
        return {"done": [str(model.invoke(f"Do: {step}").text)]}

    def next_node(state: Progress) -> str:
        return "execute" if forever or len(state["done"]) < len(state["steps"]) else "answer"

    async def answer(state: Progress) -> dict[str, Any]:
        return {"answer": str((await model.ainvoke(f"Sum up {len(state['done'])}")).text)}

    builder = StateGraph(Progress)
    builder.add_node("plan", plan)
    builder.add_node("execute", execute_in_thread if blocking else execute)
    builder.add_node("answer", answer)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "execute")
    builder.add_conditional_edges("execute", next_node, ["execute", "answer"])
    builder.add_edge("answer", END)
    return builder.compile()

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


def supervisor(model: BaseChatModel, rounds: int = 2, **options: Any) -> Any:
    """A supervisor that chooses one of two agents, this many times.

    Args:
        options: of its structured output.
    """
    router = model.with_structured_output(Route, **options)

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


def plan_and_execute(
    model: BaseChatModel,
    *,
    planner: BaseChatModel | None = None,
    executor: Any = None,
    blocking: bool = False,
    forever: bool = False,
) -> Any:
    """Plans, executes one step after another, and answers.

    Args:
        planner: the model that plans; None: the same.
        executor: the agent that executes a step; None: the model.
        blocking: plain functions as nodes, which call the model's `invoke` in threads.
        forever: never run out of steps.
    """
    planning = (planner or model).with_structured_output(Plan)

    def planned(plan: Any) -> dict[str, Any]:
        return {"steps": plan.steps}

    def prompt(state: Progress) -> str:
        return f"Do: {state['steps'][len(state.get('done', [])) % len(state['steps'])]}"

    def next_node(state: Progress) -> str:
        return "execute" if forever or len(state["done"]) < len(state["steps"]) else "answer"

    async def plan(state: Progress) -> dict[str, Any]:
        return planned(await planning.ainvoke(f"Plan: {state['goal']}"))

    async def execute(state: Progress) -> dict[str, Any]:
        return {"done": [await _done_by(executor or model, prompt(state))]}

    async def answer(state: Progress) -> dict[str, Any]:
        return {"answer": str((await model.ainvoke("Sum up")).text)}

    def plan_in_thread(state: Progress) -> dict[str, Any]:
        return planned(planning.invoke(f"Plan: {state['goal']}"))

    def execute_in_thread(state: Progress) -> dict[str, Any]:
        return {"done": [str(model.invoke(prompt(state)).text)]}

    def answer_in_thread(state: Progress) -> dict[str, Any]:
        return {"answer": str(model.invoke("Sum up").text)}

    builder = StateGraph(Progress)
    builder.add_node("plan", plan_in_thread if blocking else plan)
    builder.add_node("execute", execute_in_thread if blocking else execute)
    builder.add_node("answer", answer_in_thread if blocking else answer)
    builder.add_edge(START, "plan")
    builder.add_edge("plan", "execute")
    builder.add_conditional_edges("execute", next_node, ["execute", "answer"])
    builder.add_edge("answer", END)
    return builder.compile()


async def _done_by(worker: Any, prompt: str) -> str:
    """What a model, or an agent, answers."""
    if isinstance(worker, BaseChatModel):
        return str((await worker.ainvoke(prompt)).text)
    result = await worker.ainvoke({"messages": [("user", prompt)]})
    return str(result["messages"][-1].text)

"""Plan-and-execute with ChatOpenAI, whose calls carry the graph's deadline to `orchestrate serve`.

orchestrate serve &
python examples/plan_and_execute.py http://127.0.0.1:8000/v1 random
"""

import operator
import sys
from typing import Annotated

from langchain_openai import ChatOpenAI
from langgraph.graph import END, START, StateGraph
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from orchestrator.langgraph import attach

url, name = sys.argv[1:]
model = ChatOpenAI(model=name, base_url=url, api_key="none", max_completion_tokens=100)


class Plan(BaseModel):
    steps: list[Annotated[str, Field(max_length=20)]] = Field(min_length=2, max_length=3)


class State(TypedDict, total=False):
    goal: str
    steps: list[str]
    results: Annotated[list[str], operator.add]
    answer: str


def plan(state: State) -> State:
    made = model.with_structured_output(Plan).invoke(f"Plan in short steps: {state['goal']}")
    return {"steps": made.steps}


def execute(state: State) -> State:
    step = state["steps"][len(state.get("results", []))]
    return {"results": [model.invoke(f"Goal: {state['goal']}. Now do: {step}").text]}


def next_node(state: State) -> str:
    return "execute" if len(state["results"]) < len(state["steps"]) else "answer"


def answer(state: State) -> State:
    notes = "\n".join(state["results"])
    return {"answer": model.invoke(f"Goal: {state['goal']}. Sum up:\n{notes}").text}


builder = StateGraph(State).add_node(plan).add_node(execute).add_node(answer)
builder.add_edge(START, "plan").add_edge("plan", "execute").add_edge("answer", END)
builder.add_conditional_edges("execute", next_node, ["execute", "answer"])
graph = attach(builder.compile(), deadline="60s", on_deadline="best_so_far")
print(graph.invoke({"goal": "explain the tides"}).get("answer", "no answer in time"))

"""LangGraph graphs as users write them, for ChatOrchestrate and for another chat model."""

from __future__ import annotations

import asyncio
import operator
import time
from typing import Annotated, Any

import pytest
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langgraph.graph import END, START, StateGraph
from langgraph.types import Send, interrupt
from typing_extensions import TypedDict

from orchestrator.chat_model import ChatOrchestrate


class ForeignChat(BaseChatModel):
    """A chat model other than ChatOrchestrate, with a constant answer after `delay_s`."""

    text: str = "from far away"
    delay_s: float = 0.0

    @property
    def _llm_type(self) -> str:
        return "foreign"

    def _generate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        time.sleep(self.delay_s)
        return self._result()

    async def _agenerate(self, messages: list[BaseMessage], *_: Any, **__: Any) -> ChatResult:
        await asyncio.sleep(self.delay_s)
        return self._result()

    def _result(self) -> ChatResult:
        message = AIMessage(
            self.text,
            usage_metadata={"input_tokens": 5, "output_tokens": 3, "total_tokens": 8},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


TOPIC = {"topic": "tides"}
MODELS = [ChatOrchestrate(), ForeignChat()]
by_model = pytest.mark.parametrize("model", MODELS, ids=["ours", "foreign"])


class Notes(TypedDict):
    topic: str
    notes: Annotated[list[str], operator.add]
    report: str


class Part(TypedDict):
    part: str


class Report(TypedDict):
    report: str


def map_reduce(model: BaseChatModel, *, calls: int = 1, parts: int = 3) -> Any:
    """A planner, a worker for each part (by Send) that makes `calls` calls, and a writer."""

    async def plan(state: Notes) -> dict[str, Any]:
        await model.ainvoke(f"plan {state['topic']}")
        return {"notes": ["planned"]}

    def fan_out(state: Notes) -> list[Send]:
        return [Send("work", {"part": f"part {number}"}) for number in range(parts)]

    async def work(state: Part) -> dict[str, Any]:
        for number in range(calls):
            await model.ainvoke(f"{state['part']} {number}")
        return {"notes": [state["part"]]}

    async def write(state: Notes) -> dict[str, Any]:
        answer = await model.ainvoke(f"write of {state['notes']}")
        return {"report": str(answer.text)}

    builder = StateGraph(Notes, output_schema=Report)
    builder.add_node("plan", plan)
    builder.add_node("work", work)
    builder.add_node("write", write)
    builder.add_edge(START, "plan")
    builder.add_conditional_edges("plan", fan_out, ["work"])
    builder.add_edge("work", "write")
    builder.add_edge("write", END)
    return builder


def sync_chain(model: BaseChatModel) -> Any:
    """Two sequential nodes that are plain functions."""

    def first(state: Notes) -> dict[str, Any]:
        return {"notes": [str(model.invoke(state["topic"]).text)]}

    def second(state: Notes) -> dict[str, Any]:
        return {"report": str(model.invoke(str(state["notes"])).text)}

    builder = StateGraph(Notes)
    builder.add_node("first", first)
    builder.add_node("second", second)
    builder.add_edge(START, "first")
    builder.add_edge("first", "second")
    builder.add_edge("second", END)
    return builder


def with_approval(model: BaseChatModel) -> Any:
    """A subgraph that drafts and waits for the user's approval, and a node after it."""

    async def draft(state: Notes) -> dict[str, Any]:
        return {"notes": [str((await model.ainvoke(state["topic"])).text)]}

    def approve(state: Notes) -> dict[str, Any]:
        return {"report": f"{state['notes'][0]}, {interrupt('publish?')}"}

    inner = StateGraph(Notes)
    inner.add_node("draft", draft)
    inner.add_node("approve", approve)
    inner.add_edge(START, "draft")
    inner.add_edge("draft", "approve")
    inner.add_edge("approve", END)

    async def check(state: Notes) -> dict[str, Any]:
        await model.ainvoke(f"check {state['report']}")
        return {"notes": []}

    outer = StateGraph(Notes)
    outer.add_node("article", inner.compile())
    outer.add_node("check", check)
    outer.add_edge(START, "article")
    outer.add_edge("article", "check")
    outer.add_edge("check", END)
    return outer

"""Graphs like those in LangGraph's tutorials, passed to attach(), on the real engine."""

from __future__ import annotations

import asyncio
import operator
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict

import pytest
from langchain_core.messages import AIMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import END, START, StateGraph
from langgraph.prebuilt import create_react_agent
from langgraph.types import Command, Send, interrupt
from pydantic import BaseModel, Field

from orchestrator import DeadlineExceeded, Runtime, Settings, open_runtime
from orchestrator.chat_model import ChatOrchestrate
from orchestrator.langgraph import attach
from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from store.records import CallKind, CallRecord, RunRecord, Status
from tests.engine.shared_engine import SharedEngine

pytestmark = pytest.mark.filterwarnings("ignore:create_react_agent has been moved")

THREAD: RunnableConfig = {"configurable": {"thread_id": "a"}}
FOREVER = 100_000


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(store=f"sqlite:///{tmp_path / 'runs.db'}", fit_every=0)


@tool
def weather(city: Literal["Bern", "Oslo"]) -> str:
    """The weather in a city."""
    return f"rain in {city}"


def agent() -> Any:
    """The ReAct agent of the tutorials; it must call its tool, as the demo model's text is random.

    It keeps only the last turns: longer prompts would exceed the demo model's context.
    """
    model = ChatOrchestrate(max_tokens=100)
    return create_react_agent(
        model.bind_tools([weather], tool_choice="any"),
        [weather],
        pre_model_hook=lambda state: {"llm_input_messages": state["messages"][-3:]},
    )


class Joke(TypedDict):
    subject: str


class Jokes(TypedDict):
    topic: str
    jokes: Annotated[list[str], operator.add]
    best: str


def map_reduce(calls: int = 1) -> Any:
    """Writes jokes about three subjects in parallel, then chooses one."""
    model = ChatOrchestrate(max_tokens=16)

    def subjects(state: Jokes) -> list[Send]:
        return [Send("joke", {"subject": f"{state['topic']} {number}"}) for number in range(3)]

    async def joke(state: Joke) -> dict[str, Any]:
        for _ in range(calls):
            answer = await model.ainvoke(f"A joke about {state['subject']}")
        return {"jokes": [str(answer.text)]}

    def best(state: Jokes) -> dict[str, Any]:
        return {"best": str(model.invoke(f"The best of {len(state['jokes'])} jokes").text)}

    builder = StateGraph(Jokes)
    builder.add_node("joke", joke)
    builder.add_node("best", best)
    builder.add_conditional_edges(START, subjects, ["joke"])
    builder.add_edge("joke", "best")
    builder.add_edge("best", END)
    return builder.compile()


class Mail(TypedDict):
    request: str
    draft: str
    sent: str


def approval(calls: int = 1) -> Any:
    """A subgraph that drafts a mail and waits for its user, inside a graph that sends the mail."""
    model = ChatOrchestrate(max_tokens=16)

    def draft(state: Mail) -> dict[str, Any]:
        for _ in range(calls):
            answer = model.invoke(f"Draft: {state['request']}")
        return {"draft": str(answer.text)}

    def ask(state: Mail) -> dict[str, Any]:
        return {"draft": f"{interrupt({'draft': state['draft']})}"}

    async def send(state: Mail) -> dict[str, Any]:
        await model.ainvoke(f"A subject for {state['draft']}")
        return {"sent": state["draft"]}

    inner = StateGraph(Mail)
    inner.add_node("draft", draft)
    inner.add_node("ask", ask)
    inner.add_edge(START, "draft")
    inner.add_edge("draft", "ask")
    outer = StateGraph(Mail)
    outer.add_node("write", inner.compile())
    outer.add_node("send", send)
    outer.add_edge(START, "write")
    outer.add_edge("write", "send")
    return outer.compile(checkpointer=InMemorySaver())


async def newest_run(runtime: Runtime) -> tuple[RunRecord, list[CallRecord]]:
    """The newest run and its calls; neither it, nor a call or step of it, is still running."""
    async with runtime.store.reading() as tx:
        run = (await tx.runs.newest())[0]
        calls = list(await tx.calls.of_run(run.id))
        steps = await tx.journal.of_run(run.id)
    assert {run.status} | {each.status for each in [*calls, *steps]} <= set(Status) - {
        Status.RUNNING
    }
    return run, calls


async def in_engine(engine: EmbeddedEngine) -> tuple[int, int]:
    """Number of running and of waiting requests in the scheduler."""
    return await engine.call(
        lambda llm: (len(scheduler_of(llm).running), len(scheduler_of(llm).waiting))
    )


async def test_a_react_agent_runs_under_a_deadline(
    engine: EmbeddedEngine, settings: Settings
) -> None:
    async with open_runtime(settings, engine=SharedEngine(engine)) as runtime:
        graph = attach(agent(), deadline="5m")
        result = await graph.ainvoke({"messages": [("user", "Bern?")]}, {"recursion_limit": 9})
        run, calls = await newest_run(runtime)
    assert isinstance(result["messages"][-1], AIMessage)
    assert run.status is Status.COMPLETED
    kinds = [call.kind for call in calls]
    assert kinds[:4] == [CallKind.LLM, CallKind.TOOL, CallKind.LLM, CallKind.TOOL]
    assert [call.stage for call in calls] == list(range(len(calls)))
    assert {call.identity for call in calls if call.kind is CallKind.TOOL} == {"weather"}


async def test_a_map_reduce_runs_under_a_deadline(
    engine: EmbeddedEngine, settings: Settings
) -> None:
    async with open_runtime(settings, engine=SharedEngine(engine)) as runtime:
        graph = attach(map_reduce(), deadline="5m")
        result = await graph.ainvoke({"topic": "tides"})
        run, calls = await newest_run(runtime)
    assert len(result["jokes"]) == 3
    assert run.status is Status.COMPLETED
    assert sorted((call.stage, call.step_path) for call in calls) == [
        (0, "joke[0]/llm"),
        (0, "joke[1]/llm"),
        (0, "joke[2]/llm"),
        (1, "best/llm"),
    ]
    assert all(call.output_tokens and call.sub_deadline_s for call in calls)


async def test_a_subgraph_with_an_interrupt_runs_under_a_deadline(
    engine: EmbeddedEngine, settings: Settings
) -> None:
    async with open_runtime(settings, engine=SharedEngine(engine)) as runtime:
        graph = attach(approval(), deadline="5m")
        interrupted = await graph.ainvoke({"request": "a loan"}, THREAD)
        assert "draft" in interrupted["__interrupt__"][0].value
        assert (await newest_run(runtime))[0].status is Status.COMPLETED
        sent = await graph.ainvoke(Command(resume="Dear bank"), THREAD)
        run, calls = await newest_run(runtime)
        modes = ["messages", "updates"]
        other: RunnableConfig = {"configurable": {"thread_id": "b"}}
        chunks = await asyncio.to_thread(
            lambda: list(graph.stream({"request": "a job"}, other, stream_mode=modes))
        )
    assert sent["sent"] == "Dear bank"
    assert run.status is Status.COMPLETED
    assert [call.step_path for call in calls] == ["send/llm"]
    assert chunks[-1][0] == "updates"
    assert "__interrupt__" in chunks[-1][1]


@pytest.mark.parametrize(
    ("make", "graph_input"),
    [
        (agent, {"messages": [("user", "Bern?")]}),
        (lambda: map_reduce(FOREVER), {"topic": "tides"}),
        (lambda: approval(FOREVER), {"request": "a loan"}),
    ],
    ids=["react", "map-reduce", "subgraph"],
)
async def test_at_the_deadline_requests_are_aborted_and_wrap_up_gives_the_answer(
    engine: EmbeddedEngine, settings: Settings, make: Any, graph_input: Any
) -> None:
    at_wrap_up: list[tuple[int, int]] = []
    last = ChatOrchestrate(max_tokens=4)

    async def wrap_up(state: Any) -> str:
        at_wrap_up.append(await in_engine(engine))
        assert isinstance(state, dict)
        return str((await last.ainvoke("Sum up")).text)

    config: RunnableConfig = {**THREAD, "recursion_limit": FOREVER}
    async with open_runtime(settings, engine=SharedEngine(engine)) as runtime:
        graph = attach(make(), deadline="12s", on_deadline="wrap_up", wrap_up=wrap_up, tail="10s")
        answer = await graph.ainvoke(graph_input, config)
        after = await in_engine(engine)
        run, calls = await newest_run(runtime)
        with pytest.raises(DeadlineExceeded):
            await attach(make(), deadline="1s").ainvoke(graph_input, config)
        assert await in_engine(engine) == (0, 0)
        assert (await newest_run(runtime))[0].error_type == "DeadlineExceeded"
    assert isinstance(answer, str)
    assert at_wrap_up == [(0, 0)]
    assert after == (0, 0)
    assert run.status is Status.COMPLETED
    assert [call.status for call in calls if call.step_path.startswith("wrap-up[")] == [
        Status.COMPLETED
    ]
    assert len(calls) > 1  # the number depends on the machine's speed


class Verdict(BaseModel):
    good: bool
    why: str = Field(min_length=1, max_length=12)


async def test_structured_output_satisfies_its_schema(
    engine: EmbeddedEngine, settings: Settings
) -> None:
    async with open_runtime(settings, engine=SharedEngine(engine)):
        model = ChatOrchestrate(max_tokens=100)
        assert isinstance(
            await model.with_structured_output(Verdict).ainvoke("Is it good?"), Verdict
        )
        message = await model.ainvoke("hello")
        assert message.response_metadata["random_weights"] is True
        chunks = [chunk async for chunk in model.astream("hello")]
    assert len(chunks) > 3

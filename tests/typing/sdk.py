# pyright: strict, reportUnnecessaryTypeIgnoreComment=true, reportUnusedFunction=false
"""Type checkers see the user's own signatures of decorated functions.

`make static` checks this file with mypy and pyright; nothing runs it. Each `type: ignore` marks a
wrong call: a checker that accepts one reports the comment as unused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Literal, TypedDict, assert_type

from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

from orchestrator import (
    AgentResult,
    Answer,
    Budget,
    Image,
    McpTool,
    Message,
    Question,
    RunHandle,
    RunInfo,
    Runtime,
    RunUsage,
    Submitted,
    ToolUse,
    Worker,
    Workspace,
    agent,
    budget,
    choose,
    embed,
    flow,
    gather,
    input_required,
    llm,
    llm_stream,
    mcp_tools,
    model_info,
    run_id,
    slo_tags,
    step,
    tool,
    workspace,
)
from orchestrator.events import TextGenerated
from orchestrator.langgraph import attach, run_blocking
from orchestrator.openai_client import slo_http_client, sync_slo_http_client


class Point(BaseModel):
    x: int


@dataclass
class Place:
    name: str


class Named(TypedDict):
    name: str


@step
async def a_step(text: str, *, times: int = 1) -> list[str]:
    return [text] * times


@flow
async def a_flow(text: str) -> Point:
    return Point(x=len(text))


@flow(deadline="60s", name="other")
async def another_flow(text: str, times: int) -> bytes:
    return text.encode() * times


@step(retries=3, timeout="5s", cache="1h")
async def a_step_with_retries(text: str) -> bytes:
    return text.encode()


@step(retries=3, retry_on=(OSError, KeyError), give_up_on=FileNotFoundError, backoff="1s")
async def a_steered_step(text: str) -> bytes:
    return text.encode()


@step(
    retries=1, backoff=lambda number, error: timedelta(seconds=number), timeout=timedelta(hours=1)
)
def another_steered_step(text: str) -> bytes:
    return text.encode()


@step
def a_plain_step(text: str) -> bytes:
    return text.encode()


@flow(deadline="60s")
def a_plain_flow(text: str) -> bytes:
    return text.encode()


@tool(effects="pure")
def a_pure_tool(number: float) -> dict[str, int]:
    return {"x": int(number)}


@tool
def a_tool(number: float) -> dict[str, int]:
    return {"x": int(number)}


@tool
async def an_async_tool(number: float) -> complex:
    return complex(number)


def functions() -> list[Callable[[str], Coroutine[None, None, bytes]]]:
    """Decorated functions are coroutine functions, plain ones too."""
    return [a_step_with_retries, a_steered_step, another_steered_step, a_plain_step]


async def right_calls() -> None:
    assert_type(await a_step("x", times=2), list[str])
    assert_type(await a_step(text="x"), list[str])
    assert_type(await a_flow(text="x"), Point)
    assert_type(await a_plain_step("x"), bytes)
    assert_type(await a_plain_flow("x"), bytes)
    assert_type(await a_pure_tool(1), dict[str, int])
    assert_type(await another_flow("x", times=2), bytes)
    assert_type(await another_flow.options(deadline=5)("x", times=2), bytes)
    assert_type((await a_flow.run("x")).value, Point)
    assert_type((await a_flow.run("x")).usage, RunUsage)
    assert_type(await another_flow.options(deadline=timedelta(minutes=2))("x", times=2), bytes)
    assert_type(run_id(), str)
    assert_type(llm_stream("x", system="s", top_k=5), AsyncGenerator[str, None])
    async with aclosing(llm_stream([{"role": "user", "content": "x"}])) as pieces:
        assert_type([piece async for piece in pieces], list[str])
    handle = await a_flow.start("x")
    assert_type(handle.text(step="write"), AsyncGenerator[str, None])
    async for event in handle.events(text=True):
        if isinstance(event, TextGenerated):
            assert_type(event.text, str)
    async with budget(tokens=100, calls=3) as used:
        assert_type(used, Budget)
        assert_type(used.tokens, int)
    assert_type(await a_flow.start("x"), RunHandle[Point])
    assert_type((await a_flow.resume("an-id")).value, Point)
    assert_type(await a_tool(1), dict[str, int])
    assert_type(await an_async_tool(1), complex)
    assert_type(await gather(a_step("x"), a_flow("y")), tuple[list[str], Point])
    assert_type(
        await gather(a_step("x"), a_flow("y"), a_tool(1)),
        tuple[list[str], Point, dict[str, int]],
    )
    assert_type(await gather(*(a_step(each) for each in "abc")), tuple[list[str], ...])
    assert_type(await llm("x"), str)
    assert_type(await llm("x", schema=Point), Point)
    assert_type(await llm("x", schema={"type": "object"}), Any)
    assert_type(await llm("x", schema=list[int], top_k=5, min_p=0.1), list[int])
    assert_type(await llm("x", schema=dict[str, Place]), dict[str, Place])
    assert_type(await llm("x", schema=Place), Place)
    assert_type(await llm("x", schema=Named), Named)
    assert_type(await llm("x", schema=int, frequency_penalty=1, presence_penalty=1), int)
    assert_type(await llm("x", schema=Literal["yes", "no"]), Any)
    assert_type(await llm("x", schema=Annotated[int, 5]), Any)
    assert_type(await llm("x", schema=tuple[int, str], n=2), list[tuple[int, str]])
    assert_type((await llm("x", schema=list[Place], logprobs=0)).value[0].name, str)
    assert_type(await llm("x", n=3, seed=1), list[str])
    assert_type(await llm("x", schema=Point, n=3), list[Point])
    assert_type(await llm("x", schema={}, n=3), list[Any])
    assert_type(await llm("x", logprobs=0, on_text=print), Answer[str])
    assert_type(await llm("x", schema=Point, logprobs=2), Answer[Point])
    assert_type(await llm("x", schema={}, logprobs=2), Answer[Any])
    assert_type(await llm("x", logprobs=2, n=3), list[Answer[str]])
    assert_type(await llm("x", schema=Point, logprobs=2, n=3), list[Answer[Point]])
    assert_type((await llm("x", schema=Point, logprobs=2)).value.x, int)
    assert_type(await llm("x", engine="judge", model="large", deadline="2s"), str)
    assert_type(await llm("x", schema=Point, ttft=0.5, tbt=timedelta(milliseconds=50)), Point)
    assert_type(await llm("x", n=2, waiting_time="5s", engine=None), list[str])
    assert_type(await llm([Message("user", ("what?", Image.from_file("a.png")))]), str)
    assert_type(await llm([{"role": "user", "content": [{"type": "text", "text": "x"}]}]), str)
    assert_type(await embed(["a", "b"], engine="vectors"), list[list[float]])
    assert_type((await choose("x", ["a", "b"], engine="judge")).text, str)
    assert_type((await model_info("judge")).name, str)


async def right_agents() -> None:
    async with mcp_tools(["a-server"], timeout="5s") as tools:
        assert_type(tools, list[McpTool])
        assert_type(await tools[0](city="Bern"), str)
        result = await agent("x", [a_tool, a_step, a_flow, len, *tools], max_rounds=3)
    assert_type(result, AgentResult[str])
    assert_type(result.calls, tuple[ToolUse, ...])
    assert_type(await agent("x", engine="judge", model="large"), AgentResult[str])
    assert_type((await agent("x", schema=Point, until=lambda far: far.rounds > 2)).value, Point)
    assert_type(await agent("x", schema=list[Place], seed=1), AgentResult[list[Place]])
    assert_type(await agent("x", schema=Literal["yes", "no"]), AgentResult[Any])
    assert_type(await agent("x", schema={"type": "object"}), AgentResult[Any])


async def wrong_agents() -> None:
    await agent("x", tools=5)  # type: ignore[call-overload]
    await agent("x", max_round=3)  # type: ignore[call-overload]
    await agent("x", on_tool_error="ignore")  # type: ignore[call-overload]


async def right_control(runtime: Runtime) -> None:
    assert_type(
        await runtime.runs(flow="a", status="orphaned", user="b", tags={"team": "sea"}, limit=None),
        list[RunInfo],
    )
    assert_type(await runtime.get("an-id"), RunInfo)
    assert_type((await runtime.get("an-id")).questions, tuple[Question, ...])
    assert_type(await runtime.answer("an-id", Point(x=1), question="input"), Question)
    assert_type(await runtime.cancel("an-id"), RunInfo)
    assert_type((await runtime.resume("an-id", a_flow, deadline="60s")).value, Point)
    assert_type((await a_flow.resume("an-id", deadline=60)).value, Point)
    assert_type((await runtime.fork("an-id", a_flow, at="plan", deadline=60)).value, Point)
    assert_type((await a_flow.fork("an-id", at="plan", arguments={"text": "y"})).value, Point)
    assert_type((await runtime.get("an-id")).forked_from, str | None)
    assert_type(await input_required("x?", schema=Point), Point)
    assert_type(await input_required("x?", stops_clock=True), str)


async def right_openai_clients() -> None:
    assert_type(slo_tags(), dict[str, Any])
    asynchronous = AsyncOpenAI(http_client=slo_http_client(timeout=5))
    OpenAI(http_client=sync_slo_http_client())
    await asynchronous.completions.create(model="m", prompt="x", extra_body=slo_tags())


async def wrong_openai_clients() -> None:
    slo_tags("x")  # type: ignore[call-arg]
    AsyncOpenAI(http_client=sync_slo_http_client())  # type: ignore[arg-type]


async def graphs_have_workspaces(graph: Any, ws: Workspace) -> None:
    attached = attach(graph, workspace=workspace("~/repo", network=True))
    attach(graph, workspace="~/repo")
    async with attached.workspace_at({"configurable": {"thread_id": "1"}}) as at:
        assert_type(at, Workspace)
    assert_type(run_blocking(ws.read("notes")), str)
    attach(graph, workspace=1)  # type: ignore[arg-type]


async def wrong_control(runtime: Runtime) -> None:
    await runtime.runs(status="lost")  # type: ignore[arg-type]
    await runtime.runs("a-flow")  # type: ignore[call-arg]
    await runtime.cancel()  # type: ignore[call-arg]
    await runtime.fork("an-id")  # type: ignore[call-arg]
    await a_flow.fork("an-id", "plan")  # type: ignore[call-arg]
    await runtime.resume("an-id", deadline=[1])  # type: ignore[arg-type]
    (await runtime.get("an-id")).status = "failed"  # type: ignore[misc]


async def wrong_calls() -> None:
    await a_step(5)  # type: ignore[arg-type]
    await a_step("x", time=2)  # type: ignore[call-arg]
    await a_flow()  # type: ignore[call-arg]
    await another_flow("x", "y")  # type: ignore[arg-type]
    await another_flow.options(deadline=5)("x")  # type: ignore[call-arg]
    await a_flow.run(5)  # type: ignore[arg-type]
    await a_tool("x")  # type: ignore[arg-type]
    await gather(5)  # type: ignore[call-overload]
    await llm("x", schema=Point, max_token=3)  # type: ignore[call-overload]
    step(retries=1, retry_on=asyncio.CancelledError)  # type: ignore[arg-type]
    step(retries=1, backoff=[1])  # type: ignore[call-overload]
    budget(tokens="many")  # type: ignore[arg-type]
    await llm("x", top_k="3")  # type: ignore[call-overload]
    await llm("x", ttft=[1])  # type: ignore[call-overload]
    await llm("x", engine=3)  # type: ignore[call-overload]
    await embed("x", model=3)  # type: ignore[arg-type]
    await llm("x", n="3")  # type: ignore[call-overload]
    await llm("x", n=3, on_text=print)  # type: ignore[call-overload]
    llm_stream("x", schema=int)  # type: ignore[call-arg]
    llm_stream("x", top_k="5")  # type: ignore[arg-type]
    await llm("x", logprobs="all")  # type: ignore[call-overload]


async def check_queues(runtime: Runtime) -> None:
    queued = a_flow.queued("nightly", priority=2, not_before=timedelta(hours=1), retry="30s")
    assert_type(await queued.submit("a text"), Submitted)
    assert_type((await runtime.submit(a_flow, "a text")).feasibility.is_feasible, bool | None)
    await a_flow.submit(1)  # type: ignore
    assert_type(await Worker(runtime, [a_flow, another_flow]).run(grace=0), list[str])

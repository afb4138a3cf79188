"""OpenAI clients and ChatOpenAI in runs, against our real server in a process of its own."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, OpenAI

from orchestrator import DeadlineExceeded, Settings, flow, open_runtime, slo_tags, step
from orchestrator.langgraph import attach
from orchestrator.openai_client import slo_http_client, sync_slo_http_client
from orchestrator.testing import ScriptedEngine
from serving.slo import SloKind, from_tags
from store.records import Status
from tests.engine.agent_graphs import plan_and_execute
from tests.engine.recording_proxy import RecordingProxy, recording_proxy
from tests.engine.test_langgraph import newest_run
from tests.engine.test_server import (
    CALL_S,
    kill_if_running,
    start_server,
    until_running,
    wait_until_healthy,
)
from tests.places import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow]

FOREVER = 100_000
LONG_TOKENS = 8000
"""Tokens of an answer that takes much longer than the deadlines here."""

LONG: dict[str, Any] = {
    "model": "random",
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": LONG_TOKENS,
    "extra_body": {"ignore_eos": True},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    process, address = start_server()
    try:
        wait_until_healthy(process, address)
        yield address
    finally:
        kill_if_running(process)


@pytest.fixture
def proxy(url: str) -> Iterator[RecordingProxy]:
    with recording_proxy(url) as recording:
        yield recording


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(store=f"sqlite:///{tmp_path / 'runs.db'}", fit_every=0)


def no_engine() -> ScriptedEngine:
    """The engine of runs that only ask the server."""
    return ScriptedEngine(lambda request: "not asked")


def chat_openai(proxy: RecordingProxy, **options: Any) -> ChatOpenAI:
    return ChatOpenAI(model="random", base_url=f"{proxy.url}/v1", api_key="none", **options)


async def num_generated(url: str) -> int:
    """How many tokens the server has generated."""
    async with httpx.AsyncClient(trust_env=False, timeout=CALL_S) as client:
        text = (await client.get(f"{url}/metrics")).text
    counts = re.findall(r"^vllm:generation_tokens_total\{.*\} ([\d.e+]+)$", text, re.MULTILINE)
    assert counts
    return sum(int(float(count)) for count in counts)


@asynccontextmanager
async def aborted(url: str) -> AsyncIterator[None]:
    """A block in which a request begins that is aborted before all its LONG_TOKENS exist."""
    before = await num_generated(url)
    yield
    await until_running(url, 0)
    generated = await num_generated(url) - before
    assert 0 < generated < LONG_TOKENS


@pytest.mark.parametrize("blocking", [False, True], ids=["async", "threads"])
async def test_the_server_sees_the_sub_deadline_of_each_call_of_a_plan(
    proxy: RecordingProxy, settings: Settings, blocking: bool
) -> None:
    model = chat_openai(proxy, max_tokens=60)
    graph = attach(plan_and_execute(model, blocking=blocking), deadline="5m")
    async with open_runtime(settings, engine=no_engine()) as runtime:
        result = await graph.ainvoke({"goal": "tides"})
        run, calls = await newest_run(runtime)
    assert len(result["done"]) == 2
    assert result["answer"]
    assert run.status is Status.COMPLETED
    slos = [from_tags(tags) for tags in proxy.tags()]
    assert len(proxy.requests()) == len(slos) == len(calls) == 4
    assert [slo.stage for slo in slos] == [call.stage for call in calls] == [0, 1, 2, 3]
    assert {(slo.kind, slo.program) for slo in slos} == {(SloKind.COMPOUND, run.id)}
    for slo, call in zip(slos, calls, strict=True):
        assert slo.deadline_s is not None
        assert call.sub_deadline_s is not None
        sent_s = call.sub_deadline_s - slo.deadline_s  # since the run's start
        assert call.started_s - 0.001 <= sent_s
        assert slo.final_s == pytest.approx(300 - sent_s, abs=0.01)


@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # langchain's, in streams
@pytest.mark.parametrize("method", ["ainvoke", "ainvoke in threads", "invoke", "stream"])
async def test_at_the_deadline_the_server_aborts_the_requests_of_a_plan(
    url: str, proxy: RecordingProxy, settings: Settings, method: str
) -> None:
    model = chat_openai(proxy, max_tokens=LONG_TOKENS, extra_body={"ignore_eos": True})
    planner = chat_openai(proxy, max_tokens=60)
    blocking = method != "ainvoke"
    graph = attach(
        plan_and_execute(model, planner=planner, blocking=blocking),
        deadline="4s",
        on_deadline="best_so_far",
    )
    config: Any = {"recursion_limit": FOREVER}
    async with aborted(url), open_runtime(settings, engine=no_engine()) as runtime:
        if method.startswith("ainvoke"):
            await graph.ainvoke({"goal": "tides"}, config)
        elif method == "invoke":
            await asyncio.to_thread(graph.invoke, {"goal": "tides"}, config)
        else:
            options: Any = {"stream_mode": "messages"}
            chunks = await asyncio.to_thread(
                lambda: list(graph.stream({"goal": "tides"}, config, **options))
            )
            assert len(chunks) > 1
        run, _ = await newest_run(runtime)
    assert run.status is Status.COMPLETED


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("in_thread", [False, True], ids=["async", "thread"])
async def test_at_the_deadline_the_server_aborts_the_request_of_an_openai_client(
    url: str, proxy: RecordingProxy, settings: Settings, stream: bool, in_thread: bool
) -> None:
    key = {"base_url": f"{proxy.url}/v1", "api_key": "none"}

    @step
    async def ask() -> None:
        async with AsyncOpenAI(http_client=slo_http_client(), **key) as client:
            answer: Any = await client.chat.completions.create(stream=stream, **LONG)
            async for _ in answer:
                pass

    @step
    def ask_in_thread() -> None:
        with OpenAI(http_client=sync_slo_http_client(), **key) as client:
            answer: Any = client.chat.completions.create(stream=stream, **LONG)
            for _ in answer:
                pass

    @flow(deadline="1500ms")
    async def asking() -> None:
        await (ask_in_thread() if in_thread else ask())

    async with aborted(url), open_runtime(settings, engine=no_engine()) as runtime:
        with pytest.raises(DeadlineExceeded):
            await runtime.run(asking)
        run, _ = await newest_run(runtime)
    [tags] = proxy.tags()
    assert from_tags(tags).program == run.id


@pytest.mark.parametrize("path", ["chat", "completions", "responses"])
async def test_the_server_accepts_tags_on_each_path(
    proxy: RecordingProxy, settings: Settings, path: str
) -> None:
    key = {"base_url": f"{proxy.url}/v1", "api_key": "none"}

    @flow(deadline="60s")
    async def asking() -> None:
        async with AsyncOpenAI(http_client=slo_http_client(), **key) as client:
            if path == "chat":
                chat: Any = LONG | {"max_tokens": 4}
                await client.chat.completions.create(**chat)
            elif path == "completions":
                await client.completions.create(model="random", prompt="hi", max_tokens=4)
            else:
                await client.responses.create(model="random", input="hi", max_output_tokens=16)

    async with open_runtime(settings, engine=no_engine()) as runtime:
        await runtime.run(asking)
        run, _ = await newest_run(runtime)
    [tags] = proxy.tags()
    assert from_tags(tags).program == run.id


async def test_the_server_accepts_slo_tags_from_any_client(
    proxy: RecordingProxy, settings: Settings
) -> None:
    @flow(deadline="60s")
    async def asking() -> int:
        body = {"model": "random", "prompt": "hi", "max_tokens": 4} | slo_tags()
        async with httpx.AsyncClient(trust_env=False, timeout=CALL_S) as client:
            return (await client.post(f"{proxy.url}/v1/completions", json=body)).status_code

    async with open_runtime(settings, engine=no_engine()) as runtime:
        assert (await runtime.run(asking)).value == 200
    assert len(proxy.tags()) == 1


@pytest.mark.usefixtures("subprocesses")
async def test_the_example_of_plan_and_execute_carries_its_deadline(
    proxy: RecordingProxy, tmp_path: Path
) -> None:
    environment = os.environ | {"ORCHESTRATE_STORE": f"sqlite:///{tmp_path / 'runs.db'}"}
    command = [sys.executable, "examples/plan_and_execute.py", f"{proxy.url}/v1", "random"]
    process = await asyncio.create_subprocess_exec(
        *command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    assert output.strip()
    assert {from_tags(tags).kind for tags in proxy.tags()} == {SloKind.COMPOUND}
    assert [from_tags(tags).stage for tags in proxy.tags()] == list(range(len(proxy.tags())))
    assert len(proxy.tags()) == len(proxy.requests()) >= 4

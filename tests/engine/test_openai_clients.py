"""OpenAI clients and ChatOpenAI in runs, against our real server in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import httpx
import pytest
from langchain_core.messages import AIMessage
from langchain_openai import ChatOpenAI
from openai import AsyncOpenAI, BadRequestError, OpenAI
from pydantic import BaseModel

from orchestrator import DeadlineExceeded, Settings, flow, open_runtime, slo_tags, step
from orchestrator.langgraph import attach
from orchestrator.openai_client import slo_http_client, sync_slo_http_client
from orchestrator.testing import ScriptedEngine
from serving.slo import SloKind, from_tags
from store.records import CallKind, Status
from tests.engine.agent_graphs import QUESTION, plan_and_execute, supervisor
from tests.engine.recording_proxy import RecordingProxy, recording_proxy
from tests.engine.test_langgraph import newest_run
from tests.engine.test_server import (
    CALL_S,
    kill_if_running,
    start_server,
    until_running,
    wait_until_healthy,
)
from tests.engine.tool_graphs import handoff_supervisor, langchain_agent, react
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

CITIES = ({"city": "Bern"}, {"city": "Oslo"})


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


@pytest.mark.filterwarnings("ignore:create_react_agent has been moved")
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # langchain's, in streams
@pytest.mark.parametrize(
    ("make", "given", "used"),
    [
        (react, QUESTION, {"weather"}),
        (langchain_agent, QUESTION, {"weather"}),
        (handoff_supervisor, QUESTION, {"weather", "transfer"}),
        (lambda model: supervisor(model, method="function_calling"), QUESTION, set()),
        (
            lambda model: plan_and_execute(model, executor=react(model)),
            {"goal": "tides"},
            {"weather"},
        ),
    ],
    ids=["react", "create_agent", "handoffs", "supervisor", "plan-and-execute"],
)
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
async def test_agents_call_their_tools_by_chat_openai_under_a_deadline(
    proxy: RecordingProxy,
    settings: Settings,
    make: Any,
    given: Any,
    used: set[str],
    streaming: bool,
) -> None:
    model = chat_openai(proxy, max_tokens=100, streaming=streaming)
    async with open_runtime(settings, engine=no_engine()) as runtime:
        result = await attach(make(model), deadline="5m").ainvoke(given)
        run, calls = await newest_run(runtime)
    assert run.status is Status.COMPLETED
    tools = [call.identity for call in calls if call.kind is CallKind.TOOL]
    assert {name.partition("_to_")[0] for name in tools} >= used
    assert result["answer"] if "answer" in result else result["messages"][-1].text
    messages = [each for each in result.get("messages", ()) if isinstance(each, AIMessage)]
    assert not any(each.invalid_tool_calls for each in messages)
    for call in (call for each in messages for call in each.tool_calls):
        assert call["name"].startswith("transfer_to_") or call["args"] in CITIES
    tags = [from_tags(tags) for tags in proxy.tags()]
    assert len(tags) == len(proxy.requests()) == len(calls) - len(tools) >= 2
    assert {(slo.kind, slo.program) for slo in tags} == {(SloKind.COMPOUND, run.id)}


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


CITY: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"enum": ["Bern", "Oslo"]}},
    "required": ["city"],
}
WEATHER: dict[str, Any] = {"name": "weather", "description": "In a city.", "parameters": CITY}
CLOCK: dict[str, Any] = {"name": "clock", "parameters": {"type": "object", "properties": {}}}
ASKED: dict[str, Any] = {"model": "random", "messages": [{"role": "user", "content": "Bern?"}]}
RESPONSE: dict[str, Any] = {"model": "random", "input": "Bern?", "max_output_tokens": 60}


def chat_tool(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": function}


@pytest.fixture
def client(url: str) -> Iterator[OpenAI]:
    transport = httpx.Client(trust_env=False, timeout=CALL_S)
    with OpenAI(base_url=f"{url}/v1", api_key="none", http_client=transport) as made:
        yield made


def answer_of(client: OpenAI, *, stream: bool, **options: Any) -> tuple[str, list[Any], str]:
    """The text, the calls as (id, name, arguments) and the finish reason of one answer."""
    body = {**ASKED, "max_tokens": 60, "stream": stream, **options}
    answer: Any = client.chat.completions.create(**body)
    if not stream:
        [choice] = answer.choices
        return choice.message.content or "", _calls(choice.message), choice.finish_reason
    parts = [chunk.choices[0] for chunk in answer]
    calls = [call for part in parts for call in _calls(part.delta)]
    return "".join(part.delta.content or "" for part in parts), calls, parts[-1].finish_reason


def _calls(message: Any) -> list[Any]:
    return [
        (call.id, call.function.name, json.loads(call.function.arguments))
        for call in message.tool_calls or ()
    ]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_an_answer_calls_the_tools_that_tool_choice_allows(client: OpenAI, stream: bool) -> None:
    def ask(choice: Any, **options: Any) -> tuple[str, list[Any], str]:
        tools = [chat_tool(WEATHER), chat_tool(CLOCK)]
        return answer_of(client, stream=stream, tools=tools, tool_choice=choice, **options)

    text, calls, reason = ask("none")
    assert text
    assert not calls
    for choice in ("auto", "required"):
        text, calls, reason = ask(choice, parallel_tool_calls=False)
        assert bool(text) != bool(calls) or reason == "length"
        assert (reason == "tool_calls") == bool(calls)
        assert calls or choice == "auto"
        for _, name, arguments in calls:
            assert arguments in (CITIES if name == "weather" else [{}])
    text, [(call_id, name, arguments)], reason = ask(
        {"type": "function", "function": {"name": "weather"}}
    )
    assert (text, name, reason) == ("", "weather", "stop")  # as OpenAI's API has it
    assert arguments in CITIES
    history = [
        *ASKED["messages"],
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                chat_tool({"name": name, "arguments": json.dumps(arguments)}) | {"id": call_id}
            ],
        },
        {"role": "tool", "tool_call_id": call_id, "content": [{"type": "text", "text": "rain"}]},
    ]
    assert ask("none", messages=history)[0]
    assert ask("required", max_tokens=6) == ("", [], "length")  # cut off in a call


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_response_calls_the_tools_that_tool_choice_allows(client: OpenAI, stream: bool) -> None:
    tools = [{"type": "function", **WEATHER}, {"type": "function", **CLOCK}]

    def ask(choice: Any, **options: Any) -> Any:
        body = {**RESPONSE, "tools": tools, "tool_choice": choice, "stream": stream, **options}
        answer: Any = client.responses.create(**body)
        return list(answer)[-1].response if stream else answer

    assert [item.type for item in ask("none").output] == ["message"]
    named = {"type": "function", "name": "weather"}
    for choice in ("required", named):
        [call] = ask(choice).output
        assert call.type == "function_call"
        assert choice == "required" or call.name == "weather"
        assert json.loads(call.arguments) in (CITIES if call.name == "weather" else [{}])
    turns = [
        {"role": "user", "content": "Bern?"},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "rain"},
    ]
    assert ask("none", input=turns).output_text


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"type": "string"}, "weather: they must be of type object, not 'string'"),
        ({"type": "object", "properties": {"n": {"minItems": 10**8}}}, "weather: minItems is"),
        ({"type": "object", "properties": {"n": {"uniqueItems": True}}}, "uniqueItems"),
        ({"type": "object", "properties": {"n": {"$ref": "http://a/b"}}}, "http://a/b"),
        ({"type": "object", "properties": {"n": {"minLength": "x", "type": "string"}}}, "minLe"),
    ],
)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_a_tool_that_no_schema_can_express_is_answered_400(
    client: OpenAI, parameters: Any, reason: str, stream: bool
) -> None:
    with pytest.raises(BadRequestError) as refused:
        answer_of(client, stream=stream, tools=[chat_tool({**WEATHER, "parameters": parameters})])
    body: Any = refused.value.body
    assert body["param"] == "tools"
    assert reason in body["message"]


def test_another_constraint_than_a_schema_beside_tools_is_answered_400(client: OpenAI) -> None:
    extra = {"structured_outputs": {"regex": "a+"}}
    with pytest.raises(BadRequestError, match="beside tools"):
        answer_of(client, stream=False, tools=[chat_tool(WEATHER)], extra_body=extra)


class Place(BaseModel):
    city: Literal["Bern", "Oslo"]


def test_schemas_of_the_openai_client_are_kept_with_tools_and_without(client: OpenAI) -> None:
    chat: Any = {**ASKED, "max_tokens": 60, "response_format": Place}
    assert client.chat.completions.parse(**chat).choices[0].message.parsed
    for seed in range(3):
        tools = [chat_tool({**WEATHER, "strict": True})]
        [choice] = client.chat.completions.parse(**chat, seed=seed, tools=tools).choices
        assert choice.message.parsed or choice.message.tool_calls
    response: Any = {**RESPONSE, "text_format": Place}
    assert client.responses.parse(**response).output_parsed


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"deadline": 50}, "deadline"),
        ({"target_ttft": 20, "target_tbt": 5, "waiting_time": 30}, "latency"),
    ],
)
def test_the_fields_of_a_promise_count_on_each_path(
    client: OpenAI, url: str, fields: dict[str, Any], kind: str
) -> None:
    def promises() -> int:
        text = httpx.get(f"{url}/metrics", trust_env=False, timeout=CALL_S).text
        name = rf'^orchestrate_promises_made_total\{{kind="{kind}".*\}} ([\d.]+)$'
        return sum(int(float(count)) for count in re.findall(name, text, re.MULTILINE))

    before = promises()
    extra: Any = {"extra_body": fields}
    for stream in (False, True):
        answers: Any = [
            client.chat.completions.create(**ASKED, max_tokens=4, stream=stream, **extra),
            client.completions.create(
                model="random", prompt="hi", max_tokens=4, stream=stream, **extra
            ),
            client.responses.create(**RESPONSE, stream=stream, **extra),
        ]
        for answer in answers if stream else ():
            assert list(answer)
    assert promises() - before == 6

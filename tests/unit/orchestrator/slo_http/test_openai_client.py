"""OpenAI clients in a run: their requests carry the deadline to our server, and end at it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import httpx2
import pytest
from openai import AsyncOpenAI, BadRequestError, OpenAI

from orchestrator import DeadlineExceeded, Runtime, flow, slo_tags, step, within
from orchestrator.openai_client import (
    SloTransport,
    SyncSloTransport,
    slo_http_client,
    sync_slo_http_client,
)
from serving.slo import SloKind, from_tags
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime, the_run
from tests.unit.orchestrator.slo_http.model_servers import URL, ModelServer
from tests.unit.orchestrator.virtual_time import LoopClock, run_in_virtual_time

MESSAGES: Any = [{"role": "user", "content": "hi"}]
Send = Callable[..., Any]


def async_client(server: ModelServer, **options: Any) -> AsyncOpenAI:
    http_client = slo_http_client(transport=server.async_transport())
    return AsyncOpenAI(base_url=URL, api_key="secret", http_client=http_client, **options)


def sync_client(server: ModelServer, **options: Any) -> OpenAI:
    http_client = sync_slo_http_client(transport=server.transport())
    return OpenAI(base_url=URL, api_key="secret", http_client=http_client, **options)


def by_async(server: ModelServer) -> Send:
    async def send(**options: Any) -> str:
        answer = await async_client(server).chat.completions.create(
            model="random", messages=MESSAGES, **options
        )
        return str(answer.choices[0].message.content)

    return send


def by_thread(server: ModelServer) -> Send:
    @step
    def in_thread(**options: Any) -> str:
        answer = sync_client(server).chat.completions.create(
            model="random", messages=MESSAGES, **options
        )
        return str(answer.choices[0].message.content)

    return in_thread


def by_own_transport(server: ModelServer) -> Send:
    async def send(**options: Any) -> str:
        async with httpx2.AsyncClient(transport=SloTransport(server.async_transport())) as client:
            body = {"messages": MESSAGES} | options.pop("extra_body", {}) | options
            answer = await client.post(f"{URL}/chat/completions", json=body)
            return str(answer.json()["choices"][0]["message"]["content"])

    return send


def by_own_sync_transport(server: ModelServer) -> Send:
    @step
    def in_thread(**options: Any) -> str:
        with httpx2.Client(transport=SyncSloTransport(server.transport())) as client:
            body = {"messages": MESSAGES} | options.pop("extra_body", {}) | options
            answer = client.post(f"{URL}/chat/completions", json=body)
            return str(answer.json()["choices"][0]["message"]["content"])

    return in_thread


ways = pytest.mark.parametrize(
    "way", [by_async, by_thread, by_own_transport, by_own_sync_transport]
)


@ways
async def test_a_request_in_a_run_carries_its_deadline(
    runtime: Runtime, way: Callable[[ModelServer], Send]
) -> None:
    server = ModelServer()
    send = way(server)

    @flow(deadline="60s")
    async def asking() -> str:
        return await send(temperature=0.5)

    result = await runtime.run(asking)
    assert result.value == "all is well"
    [tags] = server.tags
    slo = from_tags(tags)
    assert slo.kind is SloKind.COMPOUND
    assert slo.program == result.run_id
    assert slo.final_s is not None
    assert 0 < slo.final_s <= 60
    assert server.bodies[0]["temperature"] == 0.5
    assert server.paths == ["/v1/models", "/v1/chat/completions"]


@ways
async def test_a_server_of_others_is_asked_once_and_gets_no_tags(
    runtime: Runtime, way: Callable[[ModelServer], Send]
) -> None:
    server = ModelServer(is_ours=False)
    send = way(server)

    @flow(deadline="60s")
    async def asking() -> str:
        return await send()

    await runtime.run(asking)
    assert server.tags == [None]


@ways
async def test_tags_of_a_requests_own_are_kept(
    runtime: Runtime, way: Callable[[ModelServer], Send]
) -> None:
    server = ModelServer()
    send = way(server)

    @flow(deadline="60s")
    async def asking() -> str:
        own: dict[str, Any] = {"vllm_xargs": {"slo_weight": 2.0}}
        return await send(extra_body=own)

    await runtime.run(asking)
    assert server.tags == [{"slo_weight": 2.0}]


async def test_other_arguments_of_vllm_stay_beside_the_tags(runtime: Runtime) -> None:
    server = ModelServer()
    send = by_async(server)

    @flow(deadline="60s")
    async def asking() -> None:
        await send(extra_body={"vllm_xargs": {"mine": 1}})
        await send(extra_body=slo_tags())
        await send(extra_body={"use_beam_search": True})

    await runtime.run(asking)
    first, second, third = server.tags
    assert first is not None
    assert second is not None
    assert first["mine"] == 1
    assert first.keys() - {"mine"} == second.keys()
    assert third is None


async def test_outside_a_run_a_request_passes_unchanged() -> None:
    server = ModelServer()
    await by_async(server)()
    sync_client(server).chat.completions.create(model="random", messages=MESSAGES)
    assert server.tags == [None, None]
    assert server.paths == ["/v1/chat/completions"] * 2
    untouched = {"connect": 5.0, "read": 600, "write": 600, "pool": 600}
    assert [dict(timeout) for timeout in server.timeouts] == [untouched, untouched]


async def test_other_requests_of_a_run_pass_unchanged(runtime: Runtime) -> None:
    server = ModelServer()
    client = slo_http_client(transport=server.async_transport())

    @flow(deadline="60s")
    async def asking() -> None:
        await client.post(f"{URL}/embeddings", json={"input": "a"})
        await client.post(f"{URL}/chat/completions", content=b"[1, 2]")

    await runtime.run(asking)
    assert server.bodies == [{"input": "a"}, [1, 2]]


async def test_a_body_that_is_a_stream_passes_unchanged(runtime: Runtime) -> None:
    server = ModelServer()
    received: list[bytes] = []

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST":
            received.append(await request.aread())
        return await server.answer_async(request)

    async def body() -> AsyncIterator[bytes]:
        yield b'{"messages": '
        yield b"[]}"

    client = slo_http_client(transport=httpx2.MockTransport(answer))

    @flow(deadline="60s")
    async def asking() -> None:
        headers = {"content-length": "16"}
        await client.post(f"{URL}/chat/completions", content=body(), headers=headers)

    await runtime.run(asking)
    assert received == [b'{"messages": []}']


async def test_the_server_is_asked_with_the_key_of_the_request(runtime: Runtime) -> None:
    server = ModelServer()
    send = by_async(server)

    @flow(deadline="60s")
    async def asking() -> None:
        await send()

    await runtime.run(asking)
    assert {headers["authorization"] for headers in server.headers} == {"Bearer secret"}


async def test_a_server_that_is_replaced_at_its_address_is_recognised(runtime: Runtime) -> None:
    server = ModelServer()
    client = async_client(server)

    @flow(deadline="60s")
    async def asking() -> None:
        for is_ours in (True, False, False, True, True):
            server.is_ours = is_ours
            await client.chat.completions.create(model="random", messages=MESSAGES)

    await runtime.run(asking)
    assert [tags is not None for tags in server.tags] == [True, True, False, False, True]


async def test_a_server_that_cannot_be_asked_gets_the_request_without_tags(
    runtime: Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    server = ModelServer()

    async def answer(request: httpx2.Request) -> httpx2.Response:
        if request.method == "GET":
            raise httpx2.ConnectError("gone")
        return await server.answer_async(request)

    client = slo_http_client(transport=httpx2.MockTransport(answer))

    @flow(deadline="60s")
    async def asking() -> None:
        await client.post(f"{URL}/chat/completions", json={})

    await runtime.run(asking)
    assert server.tags == [None]
    assert "was not asked whether it takes deadlines" in caplog.text


async def test_a_retry_carries_the_seconds_that_are_left_then(tmp_path: Path) -> None:
    server = ModelServer(statuses=(500, 500))
    client = async_client(server, max_retries=2)

    @flow(deadline="60s")
    async def asking() -> None:
        await client.chat.completions.create(model="random", messages=MESSAGES)

    async with scripted_runtime(tmp_path) as runtime:
        await runtime.run(asking)
    left_s = [from_tags(tags).final_s or 0.0 for tags in server.tags]
    assert len(left_s) == 3
    assert left_s == sorted(left_s, reverse=True)
    assert len(set(left_s)) == 3


async def test_an_error_of_the_server_reaches_the_client_as_before(runtime: Runtime) -> None:
    client = async_client(ModelServer(statuses=(400,)))

    @flow(deadline="60s")
    async def asking() -> None:
        await client.chat.completions.create(model="random", messages=MESSAGES)

    with pytest.raises(BadRequestError):
        await runtime.run(asking)


def test_at_the_deadline_a_request_is_ended_and_not_retried(tmp_path: Path) -> None:
    server = ModelServer(stalls=True)
    client = async_client(server)

    async def wrap_up(_: Any) -> str:
        return "in short"

    @flow(deadline="60s", wrap_up=wrap_up, on_deadline="wrap_up", tail="10s")
    async def asking() -> str:
        answer = await client.chat.completions.create(model="random", messages=MESSAGES)
        return str(answer)

    async def run() -> tuple[str, float]:
        async with scripted_runtime(tmp_path, clock=LoopClock()) as runtime:
            value = (await runtime.run(asking)).value
            return value, asyncio.get_running_loop().time()

    value, ended_s = run_in_virtual_time(run())
    assert value == "in short"
    assert ended_s == pytest.approx(50, abs=0.1)
    assert (len(server.bodies), server.num_cut) == (1, 1)


def test_a_request_ends_at_a_limit_within_the_run(tmp_path: Path) -> None:
    server = ModelServer(stalls=True)
    client = async_client(server)

    @flow(deadline="60s")
    async def asking() -> str:
        try:
            async with within("5s"):
                await client.chat.completions.create(model="random", messages=MESSAGES)
        except DeadlineExceeded:
            return f"ended at {asyncio.get_running_loop().time():.0f} s"
        return "not ended"

    async def run() -> str:
        async with scripted_runtime(tmp_path, clock=LoopClock()) as runtime:
            return str((await runtime.run(asking)).value)

    assert run_in_virtual_time(run()) == "ended at 5 s"
    assert server.num_cut == 1


async def test_a_transport_serves_a_client_of_httpx_too(runtime: Runtime) -> None:
    bodies: list[Any] = []

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            bodies.append(json.loads(request.content))
        return httpx.Response(200, json={}, headers={"x-orchestrate-scheduler": "SloScheduler"})

    @flow(deadline="60s")
    async def asking() -> None:
        async with httpx.AsyncClient(transport=SloTransport(httpx.MockTransport(answer))) as client:  # type: ignore[arg-type]
            await client.post(f"{URL}/chat/completions", json={})

    await runtime.run(asking)
    assert from_tags(bodies[0]["vllm_xargs"]).kind is SloKind.COMPOUND


async def test_a_request_to_an_address_of_openai_is_never_asked(runtime: Runtime) -> None:
    server = ModelServer(is_ours=False)
    client = slo_http_client(transport=server.async_transport())

    @flow(deadline="60s")
    async def asking() -> None:
        await client.post("https://api.openai.com/v1/chat/completions", json={})

    await runtime.run(asking)
    assert server.paths == ["/v1/chat/completions"]


async def test_requests_of_a_client_are_no_calls_of_the_run(tmp_path: Path) -> None:
    send = by_async(ModelServer())

    @flow(deadline="60s")
    async def asking() -> None:
        await asyncio.gather(send(), send())

    async with scripted_runtime(tmp_path) as runtime:
        await runtime.run(asking)
        assert list((await the_run(runtime.store)).calls) == []

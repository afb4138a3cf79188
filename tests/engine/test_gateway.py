"""`orchestrate gateway` in front of two real replicas, of which one is killed at work."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.engine.recording_proxy import RecordingProxy, recording_proxy
from tests.engine.test_server import free_port, kill_if_running, wait_until_healthy
from tests.places import ROOT

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.usefixtures("imported_vllm")]

LIMIT_S = 180.0
DEADLINE_S = 150.0
NUM_STREAMS, NUM_CALLS = 8, 20
WORKING_S = 2.0
"""Time before one is killed: all streams have begun."""


def started(*arguments: str) -> tuple[subprocess.Popen[bytes], str]:
    port = free_port()
    command = [sys.executable, "-m", "cli", *arguments, "--port", str(port)]
    return subprocess.Popen(command, cwd=ROOT), f"http://127.0.0.1:{port}"


class Fleet:
    """A gateway to a replica that will be killed, and to one whose requests are recorded."""

    def __init__(
        self, url: str, dying: subprocess.Popen[bytes], dying_url: str, living: RecordingProxy
    ) -> None:
        self.url = url
        self.dying = dying
        self.dying_url = dying_url
        self.living = living


@pytest.fixture
def fleet() -> Iterator[Fleet]:
    with ExitStack() as stack:
        replicas = [started("serve", "--model", "random") for _ in range(2)]
        for process, _ in replicas:
            stack.callback(kill_if_running, process)
        for process, url in replicas:
            wait_until_healthy(process, url)
        (dying, dying_url), (_, living_url) = replicas
        living = stack.enter_context(recording_proxy(living_url))
        # The equal prompts of this test would stay together, where their prefix is cached.
        gateway, url = started("gateway", dying_url, living.url, "--router", "round_robin")
        stack.callback(kill_if_running, gateway)
        wait_until_healthy(gateway, url)
        yield Fleet(url, dying, dying_url, living)


def body(tokens: int, *, stream: bool) -> dict[str, Any]:
    tags = {"slo_kind": "deadline", "slo_deadline_s": DEADLINE_S}
    return {
        "model": "random",
        "messages": [{"role": "user", "content": "Name a book."}],
        "max_tokens": tokens,
        "ignore_eos": True,
        "stream": stream,
        "vllm_xargs": tags,
    }


async def stream(client: httpx.AsyncClient) -> tuple[float, list[str]]:
    """The end of a stream by the monotonic clock, and its events."""
    content = body(1500, stream=True)
    async with client.stream("POST", "/v1/chat/completions", json=content) as answer:
        assert answer.status_code == 200
        lines = [line async for line in answer.aiter_lines()]
    events = [line.removeprefix("data: ") for line in lines if line.startswith("data: ")]
    return time.monotonic(), events


async def call(client: httpx.AsyncClient, tokens: int) -> httpx.Response:
    return await client.post("/v1/chat/completions", json=body(tokens, stream=False))


async def open_at(client: httpx.AsyncClient, url: str) -> int:
    replicas = (await client.get("/orchestrate/replicas")).json()["replicas"]
    [count] = [each["num_open"] for each in replicas if each["url"] == url]
    return int(count)


async def test_a_replica_killed_at_work_loses_its_streams_within_a_second_and_no_call(
    fleet: Fleet,
) -> None:
    async with (
        asyncio.timeout(LIMIT_S),
        httpx.AsyncClient(base_url=fleet.url, trust_env=False, timeout=LIMIT_S) as client,
    ):
        streams = [asyncio.create_task(stream(client)) for _ in range(NUM_STREAMS)]
        await asyncio.sleep(WORKING_S / 2)
        calls = [asyncio.create_task(call(client, 700)) for _ in range(NUM_CALLS)]
        await asyncio.sleep(WORKING_S)
        num_open = await open_at(client, fleet.dying_url)
        assert 10 <= num_open <= 18  # of 28
        assert not any(task.done() for task in [*streams, *calls])
        killed_s = time.monotonic()
        await asyncio.to_thread(kill_if_running, fleet.dying)
        later = [asyncio.create_task(call(client, 8)) for _ in range(6)]
        assert [answer.status_code for answer in await asyncio.gather(*later)] == [200] * 6
        ends = await asyncio.gather(*streams)
        answers = await asyncio.gather(*calls)

    broken = [(end_s, events) for end_s, events in ends if "error" in events[-2]]
    assert 2 <= len(broken) <= 6
    for end_s, events in broken:
        assert end_s - killed_s < 1.0
        error = json.loads(events[-2])["error"]
        assert (error["code"], events[-1]) == (502, "[DONE]")
    for _, events in ends:
        assert events[-1] == "[DONE]"
        assert all("choices" in json.loads(each) for each in events[:-2])

    assert [answer.status_code for answer in answers] == [200] * NUM_CALLS
    for answer in answers:
        assert answer.json()["usage"]["completion_tokens"] == 700
    left_s = sorted(tags["slo_deadline_s"] for tags in fleet.living.tags())
    again = [each for each in left_s if each < DEADLINE_S - WORKING_S / 2]
    assert len(again) == num_open - len(broken)
    assert all(DEADLINE_S - 30 < each <= DEADLINE_S - WORKING_S for each in again)
    assert all(each > DEADLINE_S - 1.0 for each in left_s[len(again) :])

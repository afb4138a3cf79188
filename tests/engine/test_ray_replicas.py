"""`orchestrate serve --replicas` on a real Ray: a server is killed, another one takes its place."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import httpx
import psutil
import pytest

from serving.engine.setup.config import EngineConfig
from serving.errors import ReplicaFailed
from serving.replicas.replica_spec import ReplicaSpec
from serving.replicas.server_process import ServerProcess
from tests.engine.test_server import free_port, kill_if_running
from tests.places import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.subprocess, pytest.mark.usefixtures("subprocesses")]

LIMIT_S = 300.0


async def test_a_server_that_cannot_load_says_why() -> None:
    spec = ReplicaSpec(EngineConfig(model="/nowhere"))
    with pytest.raises(ReplicaFailed, match="cannot load model '/nowhere'"):
        await ServerProcess.start(spec, "127.0.0.1")


@pytest.fixture
def command() -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    port = free_port()
    argv = [sys.executable, "-m", "cli", "serve", "random", "--replicas", "2"]
    process = subprocess.Popen([*argv, "--port", str(port)], cwd=ROOT)
    yield process, f"http://127.0.0.1:{port}"
    kill_if_running(process)


async def until_replicas(client: httpx.AsyncClient, process: Any, gone: str = "") -> list[str]:
    """The addresses of two replicas that answer, of which none is the one that is gone."""
    while process.poll() is None:
        try:
            states = (await client.get("/orchestrate/replicas")).json()["replicas"]
        except httpx.TransportError:  # it does not listen yet
            states = []
        urls = [each["url"] for each in states if not each["is_suspect"] and each["url"] != gone]
        if len(urls) == 2:
            return urls
        await asyncio.sleep(0.2)
    raise AssertionError("the command has ended")


def completion(tokens: int, *, stream: bool = False) -> dict[str, Any]:
    members = {"max_tokens": tokens, "ignore_eos": True, "stream": stream}
    return {"model": "random", "prompt": "Name a book.", **members}


def servers_of(process: subprocess.Popen[bytes]) -> dict[str, psutil.Process]:
    """The processes of the replicas' servers, by the address that each listens at."""
    found = {}
    for each in psutil.Process(process.pid).children(recursive=True):
        if "serving.replicas.server_child" in each.cmdline():
            for connection in each.net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found[f"http://{connection.laddr.ip}:{connection.laddr.port}"] = each
    return found


@pytest.mark.skipif(find_spec("ray") is None, reason="Ray is not installed (extra ray)")
async def test_a_killed_server_is_replaced_and_a_stop_loses_no_stream(
    command: tuple[subprocess.Popen[bytes], str],
) -> None:
    process, url = command
    async with (
        asyncio.timeout(LIMIT_S),
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=LIMIT_S) as client,
    ):
        urls = await until_replicas(client, process)
        servers = servers_of(process)
        assert servers.keys() == set(urls)
        servers[urls[0]].kill()
        later = await asyncio.gather(
            *(client.post("/v1/completions", json=completion(8)) for _ in range(8))
        )
        assert [answer.status_code for answer in later] == [200] * 8
        await until_replicas(client, process, gone=urls[0])
        servers = servers_of(process)

        content = completion(500, stream=True)
        async with client.stream("POST", "/v1/completions", json=content) as answer:
            lines = answer.aiter_lines()
            assert (await anext(lines)).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            assert [line async for line in lines if line][-1] == "data: [DONE]"
    assert await asyncio.to_thread(process.wait, 60) == 0
    assert not any(each.is_running() for each in servers.values())

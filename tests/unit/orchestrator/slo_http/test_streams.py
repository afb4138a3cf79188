"""Streamed answers in a run: whatever reads them, the connection is closed at the deadline."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from openai import AsyncOpenAI, OpenAI

from orchestrator import DeadlineExceeded, Runtime, flow, step
from orchestrator.openai_client import slo_http_client, sync_slo_http_client
from serving.engine.server.slo_middleware import SCHEDULER_HEADER

pytestmark = pytest.mark.slow

MESSAGES: Any = [{"role": "user", "content": "hi"}]
LIMIT_S = 30
HEAD = (
    f"HTTP/1.1 200 OK\r\ncontent-type: {{}}\r\n{SCHEDULER_HEADER}: SloScheduler\r\n"
    "transfer-encoding: chunked\r\n\r\n"
)
CHUNK = {"id": "1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []}
EVENT = f"data: {json.dumps(CHUNK)}\n\n"


class SilentServer:
    """Sends the first event of a stream, then nothing: until its client closes the connection."""

    def __init__(self) -> None:
        self.began, self.closed = threading.Event(), threading.Event()
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}/v1"
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        self._listening.close()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listening.accept()
            except OSError:  # closed
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while request := connection.recv(1 << 16):
                if request.startswith(b"GET"):
                    connection.sendall(chunked("application/json", '{"data": []}') + b"0\r\n\r\n")
                elif request.startswith(b"POST"):  # the body may follow in a packet of its own
                    connection.sendall(chunked("text/event-stream", EVENT))
                    self.began.set()
            if self.began.is_set():
                self.closed.set()


def chunked(kind: str, text: str) -> bytes:
    return f"{HEAD.format(kind)}{len(text):x}\r\n{text}\r\n".encode()


@pytest.fixture
def server() -> Iterator[SilentServer]:
    silent = SilentServer()
    yield silent
    silent.close()


async def test_a_stream_read_in_a_thread_is_closed_at_the_deadline(
    runtime: Runtime, server: SilentServer
) -> None:
    seen: list[BaseException] = []
    left = threading.Event()
    http_client = sync_slo_http_client(trust_env=False)
    client = OpenAI(base_url=server.url, api_key="s", http_client=http_client)

    @step
    def reading() -> None:
        try:
            for _ in client.chat.completions.create(model="m", messages=MESSAGES, stream=True):
                pass
        except BaseException as error:
            seen.append(error)
            raise
        finally:
            left.set()

    @flow(deadline="2s")
    async def asking() -> None:
        await reading()

    with pytest.raises(DeadlineExceeded):
        await runtime.run(asking)
    assert await asyncio.to_thread(left.wait, LIMIT_S)
    assert await asyncio.to_thread(server.closed.wait, LIMIT_S)
    assert [type(error) for error in seen] == [asyncio.CancelledError]


async def test_a_stream_read_by_async_code_is_closed_at_the_deadline(
    runtime: Runtime, server: SilentServer
) -> None:
    http_client = slo_http_client(trust_env=False)
    client = AsyncOpenAI(base_url=server.url, api_key="s", http_client=http_client)
    num_events = 0

    @flow(deadline="2s")
    async def asking() -> None:
        nonlocal num_events
        stream = await client.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        async for _ in stream:
            num_events += 1

    with pytest.raises(DeadlineExceeded):
        await runtime.run(asking)
    assert await asyncio.to_thread(server.closed.wait, LIMIT_S)
    assert num_events == 1


async def test_a_stream_on_an_event_loop_of_a_thread_is_closed_at_the_deadline(
    runtime: Runtime, server: SilentServer
) -> None:
    async def read() -> None:
        http_client = slo_http_client(trust_env=False)
        client = AsyncOpenAI(base_url=server.url, api_key="s", http_client=http_client)
        async for _ in await client.chat.completions.create(
            model="m", messages=MESSAGES, stream=True
        ):
            pass

    @step
    def in_thread() -> None:
        asyncio.run(read())

    @flow(deadline="2s")
    async def asking() -> None:
        await in_thread()

    with pytest.raises(DeadlineExceeded):
        await runtime.run(asking)
    assert await asyncio.to_thread(server.closed.wait, LIMIT_S)

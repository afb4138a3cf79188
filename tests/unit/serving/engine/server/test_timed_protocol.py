"""Requests that arrive slowly or never, on raw sockets, with small limits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

uvicorn = pytest.importorskip("uvicorn")
pytest.importorskip("httptools")

from serving.engine.server.timed_protocol import TimedHttpProtocol  # noqa: E402

WAIT_S = 20
LONG_S = 1000.0
REQUEST = b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n"


class Application:
    """Reads the whole body, then answers with its length; it notes disconnects."""

    def __init__(self) -> None:
        self.disconnected = asyncio.Event()
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                self.disconnected.set()
                return
            body += message["body"]
            if not message["more_body"]:
                break
        await self.may_answer.wait()
        text = str(len(body)).encode()
        headers = [(b"content-length", str(len(text)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": text})


@asynccontextmanager
async def connection(
    application: Application, *, headers_s: float = LONG_S, body_s: float = LONG_S
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection to a server with these limits."""
    limits = {
        "headers_s": headers_s,
        "body_s": body_s,
        "max_header_bytes": 1000,
        "max_body_bytes": 5000,
    }
    protocol = type("Limited", (TimedHttpProtocol,), limits)
    config = uvicorn.Config(application, log_level="error", lifespan="off", ws="none")
    config.load()
    state = uvicorn.server.ServerState()
    server = await asyncio.get_running_loop().create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    try:
        async with asyncio.timeout(WAIT_S):
            yield reader, writer
    finally:
        writer.close()
        server.close()


@pytest.mark.parametrize("part", [b"P", b"POST / HTTP/1.1\r\nhost: a\r\n"])
async def test_headers_that_never_end_are_answered_408(part: bytes) -> None:
    async with connection(Application(), headers_s=0.05) as (reader, writer):
        writer.write(part)
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


async def test_headers_that_arrive_byte_by_byte_do_not_extend_the_limit() -> None:
    async with connection(Application(), headers_s=0.1) as (reader, writer):
        answer = asyncio.create_task(reader.read())
        writer.write(b"POST / HTTP/1.1\r\nx: ")
        while not answer.done():
            writer.write(b"y")
            await asyncio.sleep(0.01)
        assert (await answer).startswith(b"HTTP/1.1 408 ")


async def test_a_connection_without_a_request_is_closed() -> None:
    async with connection(Application(), headers_s=0.05) as (reader, _):
        assert await reader.read() == b""


@pytest.mark.parametrize("body", [b"", b"ab"])
async def test_a_body_that_never_ends_is_answered_408_and_ends_in_the_application(
    body: bytes,
) -> None:
    application = Application()
    async with connection(application, body_s=0.05) as (reader, writer):
        writer.write(REQUEST + body)
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        await application.disconnected.wait()


async def test_headers_beyond_the_limit_are_answered_431() -> None:
    async with connection(Application()) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nx: " + b"y" * 2000)
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")


async def test_whole_headers_beyond_the_limit_are_answered_431_too() -> None:
    async with connection(Application()) as (reader, writer):
        writer.write(b"POST / HTTP/1.1\r\nx: " + b"y" * 2000 + b"\r\ncontent-length: 0\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")


CHUNKED = b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n"


async def test_trailers_are_limited_like_headers() -> None:
    """uvicorn keeps each of them: twenty times their size in memory."""
    async with connection(Application()) as (reader, writer):
        writer.write(CHUNKED + b"1\r\na\r\n0\r\n" + b"x: y\r\n" * 1000)
        assert (await reader.read()).startswith(b"HTTP/1.1 431 ")


async def test_a_body_beyond_the_limit_is_answered_413_and_ends_in_the_application() -> None:
    application = Application()
    async with connection(application) as (reader, writer):
        writer.write(CHUNKED + b"400\r\n" + b"a" * 1024 + b"\r\n")
        writer.write((b"400\r\n" + b"a" * 1024 + b"\r\n") * 9)
        assert (await reader.read()).startswith(b"HTTP/1.1 413 ")
        await application.disconnected.wait()


async def test_a_slow_answer_is_not_limited_nor_the_next_request_on_the_connection() -> None:
    application = Application()
    application.may_answer.clear()
    async with connection(application, headers_s=0.05, body_s=0.05) as (reader, writer):
        writer.write(REQUEST + b"abcd")
        await asyncio.sleep(0.2)
        application.may_answer.set()
        assert (await reader.readuntil(b"\r\n\r\n4")).startswith(b"HTTP/1.1 200 ")
        writer.write(REQUEST + b"abcd")
        assert (await reader.readuntil(b"\r\n\r\n4")).startswith(b"HTTP/1.1 200 ")


async def test_the_next_request_on_a_connection_is_limited_too() -> None:
    async with connection(Application(), headers_s=0.1) as (reader, writer):
        writer.write(REQUEST + b"abcd")
        await reader.readuntil(b"\r\n\r\n4")
        writer.write(b"POST / ")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")


async def test_a_pipelined_request_does_not_end_the_answer_before_it() -> None:
    application = Application()
    application.may_answer.clear()
    async with connection(application, headers_s=0.05, body_s=0.05) as (reader, writer):
        writer.write(REQUEST + b"abcd" + b"POST / ")
        await asyncio.sleep(0.2)
        application.may_answer.set()
        assert (await reader.readuntil(b"\r\n\r\n4")).startswith(b"HTTP/1.1 200 ")

"""A connection to an MCP server: a task of its own holds it, and ends with it.

The client of the package mcp has task groups, which would cancel the code around them if the
connection broke. In a task of their own they cannot; calls then raise McpServerFailed.
"""

from __future__ import annotations

import asyncio
import importlib
import shlex
import tempfile
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from orchestrator.cancellation import until_ended
from orchestrator.errors import McpServerFailed, ToolFailed
from orchestrator.tools.mcp_results import text_of
from serving.engine.server.local_host import is_loopback

if TYPE_CHECKING:
    from mcp import Client
    from mcp.types import Tool

R = TypeVar("R")

MAX_PAGES = 100
"""Most pages of a list of tools."""

CLOSING_S = 10.0
"""Most seconds that a connection may take to close: a process gets a moment to end by itself."""

MAX_STDERR_CHARACTERS = 400
"""Most characters of what a server's process wrote to stderr, in an error."""


@dataclass(frozen=True, slots=True)
class McpServer:
    """Where a server is: a command, or a URL.

    Attributes:
        start_timeout_s: until it has answered for the first time.
        timeout_s: for each call.
    """

    command: Sequence[str]
    url: str
    env: Mapping[str, str]
    cwd: str | Path | None
    headers: Mapping[str, str]
    start_timeout_s: float
    timeout_s: float

    @property
    def name(self) -> str:
        """The command or URL, for errors: without what may be secret in the URL."""
        if not self.url:
            return shlex.join(self.command)
        parts = urlsplit(self.url)
        return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


class McpConnection:
    """The connection while its block runs.

    Raises (on entering):
        McpServerFailed: the server did not start, or not in time.
    """

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._stderr: IO[bytes] | None = None
        self._ended = asyncio.Event()
        self._client: asyncio.Future[Client] | None = None
        self._holder: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The server, for errors."""
        return self._server.name

    async def __aenter__(self) -> McpConnection:
        try:
            # The import takes a second, so it must not run on the event loop.
            await asyncio.to_thread(importlib.import_module, "mcp")
        except ModuleNotFoundError as error:
            reason = "the package mcp is missing: pip install 'orchestrate-llm[mcp]'"
            raise McpServerFailed(self.name, reason) from error
        self._client = asyncio.get_running_loop().create_future()
        self._holder = asyncio.create_task(self._hold(self._client))
        try:
            async with asyncio.timeout(self._server.start_timeout_s):
                await asyncio.shield(self._client)
        except TimeoutError:
            await self._close()
            reason = (
                f"it did not start within {self._server.start_timeout_s:g} s{self._stderr_tail()}"
            )
            raise McpServerFailed(self.name, reason) from None
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._close()

    async def list_tools(self) -> list[Tool]:
        """All tools of the server."""
        client, tools, cursor = await self._open(), list[Any](), None
        for _ in range(MAX_PAGES):
            page = await self._within_time(client.list_tools(cursor=cursor))
            tools += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        return tools

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """The result of a tool as a text.

        Raises:
            ToolFailed: the server says that the tool failed.
            McpServerFailed: it has died, or did not answer in time.
        """
        client = await self._open()
        result = await self._within_time(client.call_tool(name, dict(arguments)), tool=name)
        text = text_of(result)
        if result.is_error:
            raise ToolFailed(name, text or "it failed, and does not say why")
        return text

    async def _open(self) -> Client:
        assert self._client is not None, "within the block"
        if self._holder is None or self._holder.done():
            raise McpServerFailed(self.name, f"it is gone{self._stderr_tail()}")
        return await asyncio.shield(self._client)

    async def _within_time(self, work: Awaitable[R], *, tool: str = "") -> R:
        """What the server answers, in time."""
        from mcp import MCPError
        from mcp.types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        try:
            async with asyncio.timeout(self._server.timeout_s):
                return await work
        except TimeoutError:
            pass
        except MCPError as error:
            if error.code not in (CONNECTION_CLOSED, REQUEST_TIMEOUT):
                if tool:
                    raise ToolFailed(tool, error.message) from error
                raise McpServerFailed(self.name, error.message) from error
            if error.code == CONNECTION_CLOSED:
                reason = f"it ended, or closed the connection{self._stderr_tail()}"
                raise McpServerFailed(self.name, reason) from error
        except Exception as error:  # of the transport, or of an answer that is not valid
            reason = f"{type(error).__name__}: {error}"
            raise McpServerFailed(self.name, reason) from error
        reason = f"it did not answer within {self._server.timeout_s:g} s"
        raise McpServerFailed(self.name, f"{reason}; raise timeout= if it may take longer")

    async def _hold(self, opened: asyncio.Future[Client]) -> None:
        """Hold the connection until the block ends."""
        with tempfile.TemporaryFile() as self._stderr:
            try:
                async with self._connected(self._stderr) as client:
                    if not opened.done():
                        opened.set_result(client)
                    await self._ended.wait()
            except BaseException as error:
                if not opened.done():
                    failed = McpServerFailed(self.name, f"{_first(error)}{self._stderr_tail()}")
                    failed.__cause__ = error
                    opened.set_exception(failed)
                if not isinstance(error, Exception):
                    raise

    @asynccontextmanager
    async def _connected(self, stderr: Any) -> AsyncIterator[Client]:
        from mcp import Client, StdioServerParameters, stdio_client
        from mcp.client.streamable_http import streamable_http_client

        server = self._server
        if not server.url:
            parameters = StdioServerParameters(
                command=server.command[0],
                args=list(server.command[1:]),
                env=dict(server.env),
                cwd=server.cwd,
            )
            async with Client(stdio_client(parameters, errlog=stderr)) as client:
                yield client
            return
        import httpx2

        http = httpx2.AsyncClient(
            headers=dict(server.headers),
            timeout=httpx2.Timeout(server.timeout_s),
            # A proxy from the environment cannot reach this machine's loopback interface.
            trust_env=not is_loopback(urlsplit(server.url).hostname or ""),
        )
        async with http, Client(streamable_http_client(server.url, http_client=http)) as client:
            yield client

    async def _close(self) -> None:
        """End the connection, and a process that was started for it."""
        self._ended.set()
        if self._holder is None:
            return
        if self._client is not None and not self._client.done():
            self._holder.cancel()  # it is still starting
        cut = asyncio.get_running_loop().call_later(CLOSING_S, self._holder.cancel)
        try:
            await until_ended([self._holder])
        finally:
            cut.cancel()
        if self._client is not None and self._client.done() and not self._client.cancelled():
            self._client.exception()  # retrieved, so that asyncio does not log it

    def _stderr_tail(self) -> str:
        """The end of what the server's process wrote to stderr."""
        if self._stderr is None or self._stderr.closed:
            return ""
        self._stderr.seek(0)
        text = self._stderr.read().decode(errors="replace").strip()
        return f"; it said: {text[-MAX_STDERR_CHARACTERS:]}" if text else ""


def _first(error: BaseException) -> str:
    """What the first error of a (nested) group says."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, FileNotFoundError):
        return f"there is no such program or folder: {error.filename}"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__

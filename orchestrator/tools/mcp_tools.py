"""mcp_tools: the tools of an MCP server, over stdio or streamable HTTP.

It needs the extra `mcp` (the package mcp, 2.x), which it imports when the first server is used.
"""

from __future__ import annotations

import shlex
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from orchestrator.durability.digests import digest_of
from orchestrator.durability.json_schemas import checked_schema, fault_of
from orchestrator.durability.values import ValueCodec
from orchestrator.durations import Duration, seconds_of
from orchestrator.errors import McpServerFailed
from orchestrator.execution.calls import run_tool_call
from orchestrator.execution.context import CallContext, current_context_or_none
from orchestrator.execution.step_execution import StepSpec
from orchestrator.tools.functions import ArgumentsInvalid
from orchestrator.tools.mcp_connection import McpConnection, McpServer
from serving.generation import ToolSpec
from store.records import Effects, StepKind

if TYPE_CHECKING:
    from jsonschema.protocols import Validator
    from mcp.types import Tool

EffectsName = Literal["pure", "env", "external"]


@dataclass(frozen=True, slots=True)
class McpTool:
    """A tool of an MCP server, for an agent's tools or to be called with keyword arguments.

    Attributes:
        spec: name, description and JSON schema, as the server gives them.
        effects: what calling it twice does, as for `tool`.
    """

    spec: ToolSpec
    effects: EffectsName
    _connection: McpConnection
    _name: str  # on the server
    _validator: Validator = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Raise ValueError if the schema is not valid."""
        object.__setattr__(self, "_validator", checked_schema(self.spec.parameters))

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Raise ArgumentsInvalid if the arguments do not satisfy the tool's schema."""
        try:
            fault = fault_of(self._validator, arguments)
        except ValueError as error:
            raise ArgumentsInvalid(f"they cannot be checked: {error}") from None
        if fault is not None:
            raise ArgumentsInvalid(fault)

    async def __call__(self, /, **arguments: Any) -> str:
        """Call the tool; within a run the call is recorded, and not repeated on resume.

        Returns:
            Its result as a text; images and other data are named in it.
        Raises:
            ToolFailed: the server says that the tool failed.
            McpServerFailed: the server has died, or did not answer in time.
        """
        context = current_context_or_none()
        if context is None:
            return await self._connection.call(self._name, arguments)

        async def work(_: CallContext) -> str:
            return await self._connection.call(self._name, arguments)

        spec = StepSpec(
            self.spec.name,
            StepKind.TOOL,
            ValueCodec(f"tool {self.spec.name}", str),
            Effects(self.effects),
            arguments=digest_of(arguments),
        )
        return await run_tool_call(context, spec, work)


@asynccontextmanager
async def mcp_tools(
    command: str | Sequence[str] | None = None,
    *,
    url: str | None = None,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
    headers: Mapping[str, str] | None = None,
    start_timeout: Duration = "60s",
    timeout: Duration = "60s",
    effects: EffectsName | None = None,
    prefix: str = "",
) -> AsyncIterator[list[McpTool]]:
    """The tools of an MCP server, while a block runs.

        async with mcp_tools("uvx mcp-server-time") as tools:
            print((await agent("What time is it in Bern?", tools)).value)

    Args:
        command: starts a server that speaks over stdio: a text, split as a shell does, or a list.
            Its process ends with the block.
        url: of a server that speaks streamable HTTP, in place of a command.
        env: variables of the process, beside PATH, HOME, USER and the like.
        cwd: its working directory.
        headers: sent with each request to a URL, such as an authorization.
        start_timeout: until the server has answered for the first time; a command may have to
            download it.
        timeout: of each call.
        effects: of all its tools; None: as the server says, which has to be trusted for that:
            "pure" if it only reads, "env" if calling it twice has no second effect, else
            "external".
        prefix: before the tools' names, to tell apart those of several servers.
    Raises:
        McpServerFailed: the server did not start, or does not describe its tools properly.
        ValueError: not one of `command` and `url` is given, or an option does not go with it.
    """
    if (command is None) == (url is None):
        raise ValueError("mcp_tools() needs a command or a url, and not both")
    if url is not None and (env is not None or cwd is not None):
        raise ValueError("env and cwd are for a command: a url is a server that runs already")
    if command is not None and headers is not None:
        raise ValueError("headers are for a url: give a command its secrets by env")
    words = shlex.split(command) if isinstance(command, str) else list(command or ())
    if url is None and not words:
        raise ValueError("the command of mcp_tools() is empty")
    server = McpServer(
        words,
        url or "",
        dict(env or {}),
        cwd,
        dict(headers or {}),
        seconds_of(start_timeout),
        seconds_of(timeout),
    )
    async with McpConnection(server) as connection:
        tools = [
            _tool_of(each, connection, effects, prefix) for each in await connection.list_tools()
        ]
        yield tools


def _tool_of(
    tool: Tool, connection: McpConnection, effects: EffectsName | None, prefix: str
) -> McpTool:
    spec = ToolSpec(f"{prefix}{tool.name}", tool.description or "", tool.input_schema)
    try:
        return McpTool(spec, effects or _effects_of(tool), connection, tool.name)
    except ValueError as error:
        reason = f"the schema of its tool {tool.name!r} is not valid: {error}"
        raise McpServerFailed(connection.name, reason) from None


def _effects_of(tool: Tool) -> EffectsName:
    hints = tool.annotations
    if hints is not None and hints.read_only_hint:
        return "pure"
    return "env" if hints is not None and hints.idempotent_hint else "external"

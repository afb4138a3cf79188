"""MCP servers as tools, over stdio and over HTTP: real servers, in processes and in this one."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from orchestrator import (
    McpServerFailed,
    McpTool,
    OutcomeUnknown,
    ToolFailed,
    agent,
    flow,
    gather,
    mcp_tools,
)
from orchestrator.tools.functions import ArgumentsInvalid
from serving.generation import ToolSpec
from tests.unit.orchestrator.interrupted_runs import RaiseOnce, run_until_interrupted
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime, the_run
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.tools.agent_samples import asks, call, native, results

SERVER = [sys.executable, str(Path(__file__).with_name("mcp_server.py"))]

SILENT = """
import os, sys, time
open(sys.argv[1], "w").write(str(os.getpid()))
time.sleep(3600)
"""

pytestmark = [pytest.mark.usefixtures("subprocesses"), pytest.mark.slow]


def by_name(tools: list[McpTool]) -> dict[str, McpTool]:
    return {tool.spec.name: tool for tool in tools}


@asynccontextmanager
async def http_server() -> AsyncIterator[str]:
    """The same server over streamable HTTP, in this process."""
    from tests.unit.orchestrator.tools.mcp_server import server

    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical", ws="none")
    serving = uvicorn.Server(config)
    task = asyncio.create_task(serving._serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        serving.should_exit = serving.force_exit = True
        await task


async def test_a_server_s_tools_are_as_it_describes_them_with_effects_by_its_hints() -> None:
    async with mcp_tools(SERVER) as tools:
        named = by_name(tools)
    weather = named["weather"]
    assert weather.spec.description == "The weather in a city."
    assert weather.spec.parameters["required"] == ["city"]
    assert (weather.effects, named["put"].effects, named["append"].effects) == (
        "pure",
        "env",
        "external",
    )


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_results_are_texts_over_either_transport(transport: str) -> None:
    @asynccontextmanager
    async def opened() -> AsyncIterator[list[McpTool]]:
        if transport == "stdio":
            async with mcp_tools(shlex.join(SERVER), prefix="my_") as tools:
                yield tools
        else:
            async with http_server() as url, mcp_tools(url=url, prefix="my_") as tools:
                yield tools

    async with opened() as tools:
        named = by_name(tools)
        assert await named["my_weather"](city="Bern", days=2) == "rain in Bern for 2"
        assert '"characters": 3' in await named["my_count"](text="abc")
        assert await named["my_picture"]() == "a dot:\n[image: image/png, 12 bytes]"
        with pytest.raises(ToolFailed, match=r"fail: .*no reason"):
            await named["my_fail"](reason="no reason")
        both = [named["my_weather"](city=city) for city in ("Bern", "Oslo")]
        assert await asyncio.gather(*both) == ["rain in Bern for 1", "rain in Oslo for 1"]


async def test_an_argument_may_have_any_name(tmp_path: Path) -> None:
    class Echo:
        async def call(self, name: str, arguments: Any) -> str:
            return f"{name} {arguments}"

    connection: Any = Echo()
    tool = McpTool(ToolSpec("look", "", {"type": "object"}), "pure", connection, "look")
    assert await tool(self=1, name=2) == "look {'self': 1, 'name': 2}"
    engine = native(asks(call("look", self="x")), "done")

    @flow
    async def talk() -> str:
        return (await agent("go", [tool])).calls[0].result

    async with scripted_runtime(tmp_path, engine) as runtime:
        assert (await runtime.run(talk)).value == "look {'self': 'x'}"


async def test_arguments_are_checked_by_the_server_s_schema() -> None:
    async with mcp_tools(SERVER) as tools:
        weather = by_name(tools)["weather"]
        weather.check({"city": "Bern"})
        for wrong in ({}, {"city": 3}, {"city": "Bern", "days": "many"}):
            with pytest.raises(ArgumentsInvalid):
                weather.check(wrong)


async def test_an_agent_uses_a_server_s_tools_and_sees_their_errors(tmp_path: Path) -> None:
    engine = native(
        asks(call("weather", city="Bern"), call("fail", reason="why"), call("weather", town="x")),
        "done",
    )

    @flow
    async def talk() -> str:
        async with mcp_tools(SERVER) as tools:
            return (await agent("Bern?", tools)).value

    async with scripted_runtime(tmp_path, engine) as runtime:
        assert (await runtime.run(talk)).value == "done"
        record = await the_run(runtime.store)
    first, second, third = results(engine.requests[-1])
    assert first == "rain in Bern for 1"
    assert "why" in second
    assert "'city' is a required property" in third
    assert record.journal["agent/weather[0]"].effects == "pure"
    assert "agent/weather[2]" not in record.journal


async def test_a_call_of_a_server_that_is_recorded_is_not_repeated(tmp_path: Path) -> None:
    raise_once, path = RaiseOnce(), tmp_path / "lines"

    @flow
    async def talk() -> list[str]:
        async with mcp_tools(SERVER) as tools:
            append = by_name(tools)["append"]
            first = await gather(append(path=str(path), text="a"), append(path=str(path), text="b"))
            raise_once()
            return [*first, await append(path=str(path), text="c")]

    async with scripted_runtime(tmp_path) as runtime:
        await run_until_interrupted(runtime, talk)
        result = await runtime.resume(ID, talk)
    assert result.value == ["appended a", "appended b", "appended c"]
    assert sorted(path.read_text().split()) == ["a", "b", "c"]


async def test_a_server_that_dies_is_named_with_what_it_said() -> None:
    async with mcp_tools(SERVER) as tools:
        named = by_name(tools)
        with pytest.raises(McpServerFailed, match=r"(?s)mcp_server\.py: it ended.*I am dying"):
            await named["die"]()
        with pytest.raises(McpServerFailed):
            await named["weather"](city="Bern")


async def test_a_server_that_hangs_is_named_when_its_time_is_over() -> None:
    async with mcp_tools(SERVER, timeout="1s") as tools:
        with pytest.raises(McpServerFailed, match="did not answer within 1 s"):
            await by_name(tools)["hang"]()


async def test_a_dead_server_ends_an_agent_and_leaves_an_external_outcome_unknown(
    tmp_path: Path,
) -> None:
    engine = native(asks(call("die")), "never")

    @flow
    async def talk() -> str:
        async with mcp_tools(SERVER) as tools:
            return (await agent("go", tools)).value

    async with scripted_runtime(tmp_path, engine) as runtime:
        with pytest.raises(McpServerFailed):
            await runtime.run(talk.options(run_id=ID))
        with pytest.raises(OutcomeUnknown, match=r"agent/die\[0\]"):
            await runtime.resume(ID, talk)
    assert len(engine.requests) == 1


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ([*SERVER, "broken"], "no configuration"),
        (["/no/such/program"], "no such program or folder: /no/such/program"),
    ],
)
async def test_a_server_that_does_not_start_is_named(command: list[str], says: str) -> None:
    with pytest.raises(McpServerFailed, match=says):
        async with mcp_tools(command):
            raise AssertionError("it never opens")


async def test_a_server_that_says_nothing_is_given_up_and_its_process_ends(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-c", SILENT, str(tmp_path / "pid")]
    with pytest.raises(McpServerFailed, match="did not start within 3 s"):
        async with mcp_tools(command, start_timeout="3s"):
            raise AssertionError("it never opens")
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


async def test_a_url_without_a_server_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with pytest.raises(McpServerFailed, match=r"http://127\.0\.0\.1/mcp: "):
        async with mcp_tools(url=f"http://user:secret@127.0.0.1:{port}/mcp", start_timeout="30s"):
            raise AssertionError("it never opens")


async def test_the_server_s_process_ends_with_the_block_also_when_its_task_is_cancelled() -> None:
    pids: asyncio.Queue[int] = asyncio.Queue()

    async def use() -> None:
        async with mcp_tools(SERVER) as tools:
            named = by_name(tools)
            pids.put_nowait(int(await named["process"]()))
            await named["hang"]()

    task = asyncio.create_task(use())
    pid = await pids.get()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({}, "a command or a url"),
        ({"command": "x", "url": "http://y"}, "a command or a url"),
        ({"command": ""}, "empty"),
        ({"command": "x", "headers": {"a": "b"}}, "headers"),
        ({"url": "http://y", "env": {}}, "env"),
        ({"command": "x", "timeout": "soon"}, "soon"),
    ],
)
async def test_options_that_do_not_fit_are_refused(arguments: Any, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        async with mcp_tools(**arguments):
            raise AssertionError("it never opens")

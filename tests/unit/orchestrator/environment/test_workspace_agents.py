"""Agents whose tools work in a workspace."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orchestrator import AgentResult, agent, flow, tool
from orchestrator.environment.beginning import workspace
from orchestrator.environment.workspace import Workspace, current_workspace
from store.records import StepKind
from tests.unit.orchestrator.environment.workspace_samples import base_in, steps_of
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime
from tests.unit.orchestrator.tools.agent_samples import asks, call, native

pytestmark = pytest.mark.usefixtures("subprocesses", "own_states")


@tool(effects="env")
async def append(ws: Workspace, text: str) -> str:
    """Append a text to the log."""
    await asyncio.sleep(0.01 * (4 - len(text)))  # later calls would be done first
    done = await ws.run(f"echo {text} >> log; cat log")
    if text == "bad":
        raise ValueError("that one is bad")
    return done.stdout


@tool(effects="env")
async def count() -> str:
    """Count the lines of the log, without a parameter for the workspace."""
    ws = current_workspace()
    assert ws is not None
    return (await ws.run("wc -l < log")).stdout


@tool(effects="pure")
async def look() -> str:
    """Look elsewhere."""
    return "elsewhere"


async def test_calls_of_one_answer_act_in_a_workspace_one_after_another(tmp_path: Path) -> None:
    base, is_killed = base_in(tmp_path), [True]
    answer = asks(
        call("append", "1", text="a"),
        call("look", "2"),
        call("append", "3", text="bad"),
        call("append", "4", text="bb"),
        call("count", "5"),
    )
    results: list[AgentResult[str]] = []

    @flow
    async def body() -> str:
        async with workspace(base) as ws:
            results.append(await agent("Write.", [append, look, count]))
            if is_killed[0]:
                raise RuntimeError
            return await ws.read("log")

    async with scripted_runtime(tmp_path, native(answer, "done")) as runtime:
        with pytest.raises(RuntimeError):
            await runtime.run(body.options(run_id="r"))
    is_killed[0] = False
    async with scripted_runtime(tmp_path, native()) as runtime:
        assert (await runtime.resume("r", body)).value == "a\nbb\n"
    for result in results:
        assert [(use.result, use.is_error) for use in result.calls] == [
            ("a\n", False),
            ("elsewhere", False),
            ("Error: ValueError: that one is bad", True),
            ("a\nbb\n", False),
            ("2\n", False),
        ]
    tools = [each for each in await steps_of(tmp_path, "r") if each.kind is StepKind.TOOL]
    assert len([each for each in tools if each.name in ("append", "count", "look")]) == 5

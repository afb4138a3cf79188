"""An agent whose process is killed among two tool calls of one answer: neither is done twice."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from orchestrator import Happened, Settings, agent, flow, open_runtime, tool
from orchestrator.events import CallFinished, CallStarted, Event
from orchestrator.testing import ScriptedEngine
from serving.generation import GenerationRequest, Message, ToolCall
from tests.unit.orchestrator.orchestrator_samples import store_url

pytestmark = pytest.mark.usefixtures("subprocesses")

RUN_ID = "the-run"
MOMENTS = [
    "before first",
    "after first",
    "first ended",
    "before second",
    "after second",
    "second ended",
]
"""Before and after its effect, and when its end is recorded."""


def kill_if(moment: str) -> None:
    if os.environ.get("KILL") == moment:
        os.kill(os.getpid(), signal.SIGKILL)


def lines(file: str) -> list[str]:
    return Path(file).read_text().split() if Path(file).exists() else []


def write(file: str, line: str) -> None:
    kill_if(f"before {line}")
    with Path(file).open("a") as opened:
        opened.write(f"{line}\n")
    kill_if(f"after {line}")


async def did_first(file: str) -> Happened | None:
    return Happened("first") if "first" in lines(file) else None


async def did_second(file: str) -> Happened | None:
    return Happened("second") if "second" in lines(file) else None


@tool(reconcile=did_first)
async def first(file: str) -> str:
    """Write one line."""
    write(file, "first")
    return "first"


@tool(reconcile=did_second)
async def second(file: str) -> str:
    """Write another line."""
    for _ in range(3):
        await asyncio.sleep(0.02)  # so that the other one ends before
    write(file, "second")
    return "second"


@flow
async def writes(file: str) -> str:
    return (await agent(file, [first, second])).value


def script(request: GenerationRequest) -> str | Message:
    [prompt, *others] = request.prompt
    assert isinstance(prompt, Message)
    if not others:
        arguments = f'{{"file": "{prompt.text}"}}'
        calls = (ToolCall("a", "first", arguments), ToolCall("b", "second", arguments))
        return Message("assistant", "", tool_calls=calls)
    return " and ".join(
        turn.text for turn in request.prompt if isinstance(turn, Message) and turn.role == "tool"
    )


async def run(folder: Path) -> str:
    """Start the run, or resume it."""
    names: dict[int, str] = {}

    def on_event(event: Event) -> None:
        if isinstance(event, CallStarted):
            names[event.node] = event.identity
        elif isinstance(event, CallFinished):
            kill_if(f"{names[event.node]} ended")

    settings = Settings(store=store_url(folder), fit_every=0)
    engine = ScriptedEngine(script, tool_parser="hermes")
    async with open_runtime(settings, engine=engine, on_event=on_event) as runtime:
        result = await runtime.run(writes.options(run_id=RUN_ID), str(folder / "lines"))
    return result.value


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_killed_agent_goes_on_and_does_each_call_once(tmp_path: Path, moment: str) -> None:
    child = os.fork()
    if not child:
        os.environ["KILL"] = moment
        try:
            asyncio.run(run(tmp_path))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "it was killed"
    before = lines(str(tmp_path / "lines"))
    expected = {"before first": [], "second ended": ["first", "second"]}
    assert before == expected.get(moment, before)
    assert asyncio.run(run(tmp_path)) == "first and second"
    assert sorted(lines(str(tmp_path / "lines"))) == ["first", "second"]

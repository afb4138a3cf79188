"""Agents in resumed runs: no answer and no tool call that has ended is repeated."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from orchestrator import FlowChanged, Message, OutcomeUnknown, Runtime, agent, flow, step, tool
from orchestrator.testing import ScriptedEngine
from tests.unit.orchestrator.interrupted_runs import (
    RaiseOnce,
    die_during_step,
    run_until_interrupted,
)
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime
from tests.unit.orchestrator.run_samples import ID
from tests.unit.orchestrator.tools.agent_samples import asks, call, in_json, native, results


@tool(effects="pure")
def weather(city: str) -> str:
    return f"rain in {city}"


async def test_a_call_that_ended_is_not_repeated_although_the_one_beside_it_is(
    tmp_path: Path,
) -> None:
    num_calls: Counter[str] = Counter()
    raise_once = RaiseOnce()

    @tool(effects="env")
    async def first() -> str:
        num_calls["first"] += 1
        return "one"

    @tool(effects="env")
    async def second() -> str:
        num_calls["second"] += 1
        raise_once()
        return "two"

    @flow
    async def both() -> str:
        return (await agent("go", [first, second], on_tool_error="raise")).value

    engine = native(asks(call("first"), call("second")), "done")
    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, both)
        result = await runtime.resume(ID, both)
    assert result.value == "done"
    assert num_calls == {"first": 1, "second": 2}
    assert len(engine.requests) == 2
    assert results(engine.requests[-1]) == ["one", "two"]


@pytest.mark.parametrize("style", ["native", "json"])
async def test_an_agent_goes_on_after_its_last_recorded_answer(tmp_path: Path, style: str) -> None:
    raise_once = RaiseOnce()

    @flow
    async def twice() -> list[str]:
        first = await agent("go", [weather], until=lambda so_far: raise_once() or False)
        return [first.value, (await agent("again", [weather])).value]

    if style == "native":
        engine = native(asks(call("weather", city="Bern")), "done", "done again")
    else:
        written = {"tool": "weather", "arguments": {"city": "Bern"}}
        engine = in_json(written, {"answer": "done"}, {"answer": "done again"})
    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, twice)
        assert len(engine.requests) == 1
        result = await runtime.resume(ID, twice)
        assert result.value == ["done", "done again"]
        assert (await runtime.resume(ID, twice)).value == result.value
    assert len(engine.requests) == 3


async def test_an_agent_that_ended_is_replayed_as_a_whole(tmp_path: Path) -> None:
    raise_once = RaiseOnce()
    shown: list[str] = []

    @flow
    async def talk() -> int:
        result = await agent("go", [weather], schema=int, on_text=shown.append)
        raise_once()
        assert result.calls[0].result == "rain in Bern"
        return result.value

    engine = native(asks(call("weather", city="Bern")), "three", '{"value": 3}')
    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, talk)
        shown.clear()
        assert (await runtime.resume(ID, talk)).value == 3
    assert len(engine.requests) == 3
    assert shown == ["three"]


LOOK = {"tool": "weather", "arguments": {"city": "Bern"}}
SAYS = asks(call("weather", city="Bern"), text="let me look")


@pytest.mark.parametrize(
    ("engine", "options", "expected"),
    [
        (native(SAYS, "it rains"), {}, ["let me look", "it rains"]),
        (native(SAYS, "never"), {"until": lambda so_far: True}, ["let me look"]),
        (native(SAYS, "so", "last"), {"max_rounds": 1}, ["let me look", "so"]),
        (native(SAYS, "three", '{"value": 3}'), {"schema": int}, ["let me look", "three"]),
        (
            native(SAYS, '{"value": 3}'),
            {"schema": int, "until": lambda so_far: True},
            ["let me look"],
        ),
        (native('{"value": 3}'), {"schema": int, "tools": []}, []),
        (in_json(LOOK, {"answer": "it rains"}), {}, ["it rains"]),
        (in_json(LOOK), {"until": lambda so_far: True}, []),
        (in_json(LOOK, {"answer": {"value": 3}}), {"schema": int}, ['{"value": 3}']),
        (
            in_json(LOOK, {"answer": {"value": 3}}),
            {"schema": int, "until": lambda so_far: True},
            [],
        ),
    ],
)
async def test_a_replayed_agent_shows_the_texts_that_it_has_shown_while_it_ran(
    tmp_path: Path, engine: ScriptedEngine, options: dict[str, Any], expected: list[str]
) -> None:
    raise_once = RaiseOnce()
    shown: list[str] = []
    chat = [
        Message("user", "Hello"),
        Message("assistant", "What is it?"),
        Message("user", "Bern?"),
    ]

    @flow
    async def talk() -> None:
        given: Any = {"tools": [weather]} | options
        await agent(chat, on_text=shown.append, **given)
        raise_once()

    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, talk)
        assert "".join(shown) == "".join(expected)
        shown.clear()
        num_requests = len(engine.requests)
        await runtime.resume(ID, talk)
    assert len(engine.requests) == num_requests
    assert shown == expected


async def test_the_text_of_an_error_is_the_same_in_a_resumed_run(tmp_path: Path) -> None:
    """Its class is not known there, so the error itself is another one."""
    raise_once = RaiseOnce()

    def fails() -> str:
        class Strange(Exception):
            pass

        raise Strange("beyond words")

    @flow
    async def talk() -> str:
        return (await agent("go", [fails], until=lambda _: raise_once() or False)).value

    engine = native(asks(call("fails")), "done")
    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, talk)
        result = await runtime.resume(ID, talk)
    assert result.value == "done"
    assert results(engine.requests[-1]) == ["Error: Strange: beyond words"]


async def test_an_external_call_with_an_unknown_outcome_ends_the_agent(runtime: Runtime) -> None:
    engine = runtime.engine
    assert isinstance(engine, ScriptedEngine)
    script = native(asks(call("send")), asks(call("send")), "never")
    engine._script, engine._tool_parser = script._script, "hermes"
    raise_once = RaiseOnce()

    def send() -> str:
        return "sent"

    @flow
    async def talk() -> str:
        return (await agent("go", [send], until=lambda _: raise_once() or False)).value

    await die_during_step(runtime, talk, "agent/send[0]")
    with pytest.raises(OutcomeUnknown, match=r"agent/send\[0\]"):
        await runtime.resume(ID, talk)
    assert len(engine.requests) == 1


async def test_a_refusal_of_tools_is_replayed_like_an_answer(tmp_path: Path) -> None:
    raise_once = RaiseOnce()

    @flow
    async def talk() -> str:
        return (await agent("go", [weather], until=lambda _: raise_once() or False)).value

    class Mistaken(ScriptedEngine):
        promises = True

        @property
        def info(self):  # type: ignore[no-untyped-def]
            refuses, self._tool_parser = self._tool_parser, "server" if self.promises else ""
            info, self._tool_parser = super().info, refuses
            return info

    written = {"tool": "weather", "arguments": {"city": "Bern"}}
    engine = Mistaken(in_json(written, {"answer": "done"})._script)
    async with scripted_runtime(tmp_path, engine) as runtime:
        await run_until_interrupted(runtime, talk)
        assert [bool(request.tools) for request in engine.requests] == [True, False]
        engine.promises = False
        assert (await runtime.resume(ID, talk)).value == "done"
    assert [bool(request.tools) for request in engine.requests] == [True, False, False]


async def test_a_recorded_agent_with_other_tools_is_another_step(tmp_path: Path) -> None:
    raise_once = RaiseOnce()
    names = ["weather"]

    @step
    async def other() -> str:
        return ""

    @flow
    async def talk() -> None:
        tools = {"weather": weather, "other": other}
        await agent("go", [tools[name] for name in names])
        raise_once()

    async with scripted_runtime(tmp_path, native("done", "done")) as runtime:
        await run_until_interrupted(runtime, talk)
        names.append("other")
        with pytest.raises(FlowChanged, match="agent"):
            await runtime.resume(ID, talk)

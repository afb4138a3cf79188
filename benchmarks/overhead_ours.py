"""Empty steps and a growing conversation, as flows of this project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.conversation import turns
from benchmarks.overhead import Flow as MeasuredFlow
from benchmarks.overhead import timed
from orchestrator import Flow, Settings, flow, gather, open_runtime, step, tool
from orchestrator.testing import ScriptedEngine


@step
async def empty() -> None:
    """A step that does nothing."""


@step
async def add_turn(conversation: list[str], turn: str) -> list[str]:
    """The conversation with one more turn."""
    return [*conversation, turn]


@flow
async def chain_of(count: int) -> None:
    """Run `count` steps one after another."""
    for _ in range(count):
        await empty()


@flow
async def branches_of(count: int) -> None:
    """Run `count` steps in parallel."""
    await gather(*(empty() for _ in range(count)))


@flow
async def conversation_of(count: int) -> int:
    """Run `count` turns; each step takes and returns the whole conversation."""
    conversation: list[str] = []
    for turn in turns()[:count]:
        conversation = await add_turn(conversation, turn)
    return len(conversation)


@tool
async def send() -> None:
    """An external effect that does nothing."""


@flow
async def effects_of(count: int) -> None:
    """Run `count` external effects one after another; their records reach the disk."""
    for _ in range(count):
        await send()


def flows(variant: str) -> dict[str, MeasuredFlow]:
    """A chain, branches, external effects, a conversation."""
    assert not variant
    return {
        "chain": _measured(chain_of),
        "branches": _measured(branches_of),
        "effects": _measured(effects_of),
        "conversation": _measured(conversation_of),
    }


def _measured(body: Flow[[int], Any]) -> MeasuredFlow:
    async def measured(file: Path, count: int) -> float:
        settings = Settings(store=f"sqlite:///{file}", fit_every=0)
        engine = ScriptedEngine(lambda request: "")
        async with open_runtime(settings, engine=engine):
            await chain_of(3)  # warm up: one-time initialisation is not measured
            return await timed(lambda: body(count))

    return measured

"""Empty steps and a growing conversation, as flows of ours."""

from __future__ import annotations

from pathlib import Path

from benchmarks.conversation import turns
from benchmarks.overhead import timed
from orchestrator import Settings, flow, gather, open_runtime, step
from orchestrator.testing import ScriptedEngine


@step
async def empty() -> None:
    """Nothing."""


@step
async def said(conversation: list[str], turn: str) -> list[str]:
    """The conversation with one more turn."""
    return [*conversation, turn]


@flow
async def chain_of(count: int) -> None:
    """So many steps, one after another."""
    for _ in range(count):
        await empty()


@flow
async def branches_of(count: int) -> None:
    """So many steps side by side."""
    await gather(*(empty() for _ in range(count)))


@flow
async def conversation_of(count: int) -> int:
    """So many turns, the whole conversation being the state."""
    conversation: list[str] = []
    for turn in turns()[:count]:
        conversation = await said(conversation, turn)
    return len(conversation)


async def chain(file: Path, count: int) -> float:
    """Seconds of a chain."""
    return await _seconds(file, chain_of, count)


async def branches(file: Path, count: int) -> float:
    """Seconds of branches."""
    return await _seconds(file, branches_of, count)


async def conversation(file: Path, count: int) -> float:
    """Seconds of a conversation."""
    return await _seconds(file, conversation_of, count)


async def _seconds(file: Path, body: object, count: int) -> float:
    settings = Settings(store=f"sqlite:///{file}", fit_every=0)
    engine = ScriptedEngine(lambda request: "")
    async with open_runtime(settings, engine=engine):
        await chain_of(3)  # what is made once is made
        return await timed(lambda: body(count))  # type: ignore[operator]

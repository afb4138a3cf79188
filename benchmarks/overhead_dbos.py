"""Empty steps, as workflows of DBOS on SQLite."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from dbos import DBOS

from benchmarks.overhead import Flow, timed


@DBOS.step()
async def empty() -> None:
    """A step that does nothing."""


@DBOS.workflow()
async def chain_of(count: int) -> None:
    """Run `count` steps one after another."""
    for _ in range(count):
        await empty()


@DBOS.workflow()
async def branches_of(count: int) -> None:
    """Run `count` steps in parallel."""
    await asyncio.gather(*(empty() for _ in range(count)))


def flows(variant: str) -> dict[str, Flow]:
    """A chain and branches.

    A conversation is not compared: the size that DBOS records depends on what the flow's author
    lets steps return.
    """
    assert not variant
    return {"chain": _measured(chain_of), "branches": _measured(branches_of)}


def _measured(body: Callable[[int], Awaitable[None]]) -> Flow:
    async def measured(file: Path, count: int) -> float:
        DBOS(config={"name": "overhead", "system_database_url": f"sqlite:///{file}"})
        DBOS.launch()
        try:
            await chain_of(3)
            return await timed(lambda: body(count))
        finally:
            DBOS.destroy()

    return measured

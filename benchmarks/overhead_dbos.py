"""Empty steps, as workflows of DBOS on SQLite."""

from __future__ import annotations

import asyncio
from pathlib import Path

from dbos import DBOS

from benchmarks.overhead import timed


@DBOS.step()
async def empty() -> None:
    """Nothing."""


@DBOS.workflow()
async def chain_of(count: int) -> None:
    """So many steps, one after another."""
    for _ in range(count):
        await empty()


@DBOS.workflow()
async def branches_of(count: int) -> None:
    """So many steps side by side."""
    await asyncio.gather(*(empty() for _ in range(count)))


async def chain(file: Path, count: int) -> float:
    """Seconds of a chain."""
    return await _seconds(file, chain_of, count)


async def branches(file: Path, count: int) -> float:
    """Seconds of branches."""
    return await _seconds(file, branches_of, count)


async def conversation(file: Path, count: int) -> float:
    """Not compared: DBOS records what steps return, as the flow's author has them return it."""
    raise NotImplementedError


async def _seconds(file: Path, body: object, count: int) -> float:
    DBOS(config={"name": "overhead", "system_database_url": f"sqlite:///{file}"})
    DBOS.launch()
    try:
        await chain_of(3)
        return await timed(lambda: body(count))  # type: ignore[operator]
    finally:
        DBOS.destroy()

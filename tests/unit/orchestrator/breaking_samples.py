"""Runs that break, to be gone on with: at a place, in a step, or with their whole process."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from orchestrator import Flow, Runtime
from tests.unit.orchestrator.orchestrator_samples import Boom
from tests.unit.orchestrator.run_samples import ID


class Breaking:
    """Raises the first time that it is come by."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error: BaseException | None = error or Boom("the first time")

    def __call__(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


class Failing:
    """Fails so many times, and counts."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.done = 0

    def __call__(self) -> int:
        self.done += 1
        if self.done <= self.times:
            raise Boom("no")
        return self.done


async def interrupted(runtime: Runtime, body: Flow[..., Any], *args: Any) -> None:
    """Begin a run that breaks."""
    with pytest.raises((Boom, asyncio.CancelledError)):
        await runtime.run(body.options(run_id=ID), *args)


async def begin_and_die(runtime: Runtime, body: Flow[..., Any], path: str) -> None:
    """Leave a run as its process would that died while a step was at work."""
    await interrupted(runtime, body)
    async with runtime.store._writer.begin() as connection:
        await connection.execute(
            text("UPDATE steps SET status = 'running', result = NULL WHERE path = :path"),
            {"path": path},
        )

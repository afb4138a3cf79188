"""Helpers that interrupt runs, to be resumed: by an error, or as if their process had died."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import text

from orchestrator import Flow, Runtime
from tests.unit.orchestrator.orchestrator_samples import Boom
from tests.unit.orchestrator.run_samples import ID


class RaiseOnce:
    """Raises the first time that it is called."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error: BaseException | None = error or Boom("the first time")

    def __call__(self) -> None:
        error, self.error = self.error, None
        if error is not None:
            raise error


class Failing:
    """Raises on its first `times` calls, and counts all calls."""

    def __init__(self, times: int) -> None:
        self.times = times
        self.num_calls = 0

    def __call__(self) -> int:
        self.num_calls += 1
        if self.num_calls <= self.times:
            raise Boom("no")
        return self.num_calls


async def run_until_interrupted(runtime: Runtime, body: Flow[..., Any], *args: Any) -> None:
    """Start a run with the id `ID` that fails or is cancelled."""
    with pytest.raises((Boom, asyncio.CancelledError)):
        await runtime.run(body.options(run_id=ID), *args)


async def die_during_step(runtime: Runtime, body: Flow[..., Any], path: str) -> None:
    """Leave a run in the store as if its process had died during the step at this path."""
    await run_until_interrupted(runtime, body)
    async with runtime.store._writer.begin() as connection:
        await connection.execute(
            text("UPDATE steps SET status = 'running', result = NULL WHERE path = :path"),
            {"path": path},
        )

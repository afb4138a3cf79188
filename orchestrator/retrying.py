"""Trying again: how often, for how long, and after which pause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.errors import DeadlineExceeded, OrchestrateError
from orchestrator.primitives import remaining, within
from store.errors import StoreError

R = TypeVar("R")

FIRST_PAUSE_S = 0.1
MOST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Tries:
    """How often some work is tried.

    Attributes:
        retries: tries after the first.
        timeout_s: for each of them; None: none.
    Raises:
        ValueError: retries is below 0.
    """

    retries: int = 0
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries is {self.retries}; it must be at least 0")

    async def of(self, work: Callable[[], Awaitable[R]]) -> R:
        """The result of the first try that gives one; raises what the last one raised."""
        for number in range(self.retries):
            try:
                return await self._once(work)
            except Exception as error:
                pause_s = min(FIRST_PAUSE_S * 2**number, MOST_PAUSE_S)
                if not _may_pass(error) or pause_s >= remaining():
                    raise
            await asyncio.sleep(pause_s)
        return await self._once(work)

    async def _once(self, work: Callable[[], Awaitable[R]]) -> R:
        if self.timeout_s is None:
            return await work()
        async with within(self.timeout_s):
            return await work()


def _may_pass(error: Exception) -> bool:
    """Whether another try may go better."""
    if isinstance(error, DeadlineExceeded):
        return True  # its own timeout; the run's ends it from outside
    return not isinstance(error, OrchestrateError | StoreError)

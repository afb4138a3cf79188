"""Trying again: how often, for how long, and after which pause."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from orchestrator.errors import DeadlineExceeded, OrchestrateError
from orchestrator.execution.context import CallContext, current_context, using_context
from orchestrator.execution.deadline_handling import cancel_after, is_expiry
from serving.errors import EngineClosed, EngineDied, InvalidRequest, InvalidSlo, PromptTooLong
from store.errors import StoreError

R = TypeVar("R")

_LASTING = (
    OrchestrateError,
    StoreError,
    InvalidRequest,
    InvalidSlo,
    PromptTooLong,
    EngineClosed,
    EngineDied,
)
"""What another try would come to as well."""

FIRST_PAUSE_S = 0.1
MOST_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True)
class Retries:
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
        """The result of the first try that gives one; raises what the last one raised.

        Each try's steps have places of their own: a resumed run may need fewer tries than before.
        """
        context = current_context("a step's tries")
        for number in range(self.retries):
            try:
                return await self._once(_within_try(context, number), work)
            except Exception as error:
                pause_s = min(FIRST_PAUSE_S * 2**number, MOST_PAUSE_S)
                if not _may_pass(error) or pause_s >= context.remaining_s():
                    raise
            await asyncio.sleep(pause_s)
        return await self._once(_within_try(context, self.retries), work)

    async def _once(self, context: CallContext, work: Callable[[], Awaitable[R]]) -> R:
        if self.timeout_s is None:
            with using_context(context):
                return await work()
        # Not `within`, whose end is recorded: a try that is resumed has its whole time again.
        ends_at_s = context.run.clock.now_s() + self.timeout_s
        with using_context(context.derive(deadline_at_s=min(context.deadline_at_s, ends_at_s))):
            try:
                async with cancel_after(self.timeout_s) as limit:
                    return await work()
            except (TimeoutError, asyncio.CancelledError) as error:
                if not is_expiry(error, limit, context.run, around=context):
                    raise
                raise DeadlineExceeded(context.step_path.text, self.timeout_s) from None


def _within_try(context: CallContext, number: int) -> CallContext:
    """Within a try, 0 the first."""
    return (
        context.derive(step_path=context.step_path.apart(f"try{number + 1}")) if number else context
    )


def _may_pass(error: Exception) -> bool:
    """Whether another try may go better."""
    if isinstance(error, DeadlineExceeded):
        return True  # its own timeout; the run's ends it from outside
    return not isinstance(error, _LASTING)

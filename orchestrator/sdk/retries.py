"""Retries of steps: number of tries, timeout of each, and pauses between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception,
    stop_after_attempt,
    wait_exponential,
)
from tenacity.stop import stop_base

from orchestrator.errors import DeadlineExceeded, OrchestrateError
from orchestrator.execution.context import CallContext, current_context, using_context
from orchestrator.execution.deadline_handling import cancel_after, is_expiry
from serving.errors import EngineClosed, EngineDied, InvalidRequest, InvalidSlo, PromptTooLong
from store.errors import StoreError

R = TypeVar("R")

_PERMANENT = (
    OrchestrateError,
    StoreError,
    InvalidRequest,
    InvalidSlo,
    PromptTooLong,
    EngineClosed,
    EngineDied,
)
"""Errors that another try would raise as well."""

FIRST_PAUSE_S = 0.1
"""Pause after the first try, in seconds; it doubles with each further try."""

MAX_PAUSE_S = 10.0
"""Longest pause between two tries, in seconds."""


@dataclass(frozen=True, slots=True)
class Retries:
    """Runs work with retries and a timeout.

    Attributes:
        retries: number of tries after the first.
        timeout_s: of each try; None: none.
    Raises:
        ValueError: retries is below 0.
    """

    retries: int = 0
    timeout_s: float | None = None

    def __post_init__(self) -> None:
        if self.retries < 0:
            raise ValueError(f"retries is {self.retries}; it must be at least 0")

    async def run(self, work: Callable[[], Awaitable[R]]) -> R:
        """The result of the first successful try; raises the last try's error if all fail.

        A permanent error is raised at once. So is any error if the deadline does not allow the
        pause before the next try. Steps of different tries are numbered separately: a resumed run
        may need fewer tries.
        """
        context = current_context("a step's tries")
        async for attempt in AsyncRetrying(
            retry=retry_if_exception(_is_transient),
            stop=stop_after_attempt(self.retries + 1) | _DeadlineIsFirst(context),
            wait=wait_exponential(multiplier=FIRST_PAUSE_S, max=MAX_PAUSE_S),
            sleep=asyncio.sleep,
            reraise=True,
        ):
            with attempt:
                number = attempt.retry_state.attempt_number
                return await self._try(_context_of_try(context, number), work)
        raise AssertionError("the last attempt returns or raises")

    async def _try(self, context: CallContext, work: Callable[[], Awaitable[R]]) -> R:
        if self.timeout_s is None:
            with using_context(context):
                return await work()
        # Not by `within`, which records its limit: in a resumed run a try has its whole timeout.
        ends_at_s = context.run.clock.now_s() + self.timeout_s
        limited = context.derive(deadline_at_s=min(context.deadline_at_s, ends_at_s))
        with using_context(limited):
            try:
                async with cancel_after(self.timeout_s, context.run) as limit:
                    return await work()
            except (TimeoutError, asyncio.CancelledError) as error:
                if not is_expiry(error, limit, limited, around=context):
                    raise
                raise DeadlineExceeded(context.step_path.text, self.timeout_s) from None


class _DeadlineIsFirst(stop_base):
    """Stops retrying if the deadline would pass during the pause before the next try."""

    def __init__(self, context: CallContext) -> None:
        self._context = context

    def __call__(self, retry_state: RetryCallState) -> bool:
        return retry_state.upcoming_sleep >= self._context.remaining_s()


def _context_of_try(context: CallContext, number: int) -> CallContext:
    """The context of a try; 1 is the first."""
    if number == 1:
        return context
    return context.derive(step_path=context.step_path.isolated(f"try{number}"))


def _is_transient(error: BaseException) -> bool:
    """Whether another try may succeed."""
    if isinstance(error, DeadlineExceeded):
        return True  # the try's own timeout; the run's deadline would have cancelled this task
    return isinstance(error, Exception) and not isinstance(error, _PERMANENT)

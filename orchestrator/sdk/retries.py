"""Retries of steps: number of tries, timeout of each, and pauses between them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt
from tenacity.stop import stop_base

from orchestrator.durability.values import ValueCodec
from orchestrator.durations import Duration, seconds_of
from orchestrator.errors import DeadlineExceeded, OrchestrateError
from orchestrator.execution.context import CallContext, current_context, using_context
from orchestrator.execution.deadline_handling import cancel_after, is_expiry
from orchestrator.execution.recorded_values import record_value
from serving.errors import (
    EmbeddingsNotSupported,
    EngineClosed,
    EngineDied,
    InvalidRequest,
    InvalidSlo,
    ModelNotServed,
    PromptTooLong,
)
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
    EmbeddingsNotSupported,
    ModelNotServed,
)
"""Errors that another try would raise as well."""

FIRST_PAUSE_S = 0.1
"""Pause after the first try, in seconds; it doubles with each further try."""

MAX_PAUSE_S = 10.0
"""Longest pause between two tries, in seconds."""

MAX_GROWTH = 100
"""How much longer than the first the longest pause of a `backoff` is."""

Backoff = Duration | Callable[[int, Exception], Duration]
"""The first pause, which doubles with each further try; or what gives each pause, called with the
number of tries so far and the last one's error."""

_SECONDS = ValueCodec("a pause", float)


@dataclass(frozen=True, slots=True)
class Retries:
    """Runs work with retries and a timeout.

    Attributes:
        retries: number of tries after the first.
        timeout_s: of each try; None: none.
        retry_on: errors of these classes are followed by another try, unless they are permanent.
        give_up_on: errors of these classes are not.
        backoff: pauses between tries; None: from FIRST_PAUSE_S on, up to MAX_PAUSE_S.
    Raises:
        ValueError: retries is below 0.
    """

    retries: int = 0
    timeout_s: float | None = None
    retry_on: tuple[type[Exception], ...] = (Exception,)
    give_up_on: tuple[type[Exception], ...] = ()
    backoff: Backoff | None = None

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
            retry=retry_if_exception(self._is_followed),
            stop=stop_after_attempt(self.retries + 1) | _DeadlineIsFirst(context),
            wait=lambda state: self._pause_s(context, state),
            sleep=asyncio.sleep,
            reraise=True,
        ):
            with attempt:
                number = attempt.retry_state.attempt_number
                return await self._try(_context_of_try(context, number), work)
        raise AssertionError("the last attempt returns or raises")

    def _is_followed(self, error: BaseException) -> bool:
        """Whether another try follows this error."""
        return (
            _is_transient(error)
            and isinstance(error, self.retry_on)
            and not isinstance(error, self.give_up_on)
        )

    def _pause_s(self, context: CallContext, state: RetryCallState) -> float:
        """Seconds until the next try.

        With `backoff` the time at which the pause ends is recorded: a resumed run, in which the
        try's error is replayed, waits no longer than the first execution would have.
        """
        number, run = state.attempt_number, context.run
        if number > self.retries or state.outcome is None:  # no further try
            return 0.0
        if self.backoff is None:
            return min(FIRST_PAUSE_S * 2.0 ** (number - 1), MAX_PAUSE_S)
        backoff, error = self.backoff, state.outcome.exception()
        assert isinstance(error, Exception), "only errors are followed by a pause"

        def ends_s() -> float:
            return run.since_start_s() + _pause_of(backoff, number, error)

        here = context.derive(step_path=context.step_path.isolated(f"pause{number}"))
        return max(record_value(here, "pause", _SECONDS, ends_s) - run.since_start_s(), 0.0)

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


def _pause_of(backoff: Backoff, number: int, error: Exception) -> float:
    """The pause after a number of tries, in seconds; raises InvalidDuration."""
    if callable(backoff):
        pause = backoff(number, error)
        return 0.0 if pause == 0 else seconds_of(pause)
    return seconds_of(backoff) * min(2.0 ** (number - 1), MAX_GROWTH)


def _is_transient(error: BaseException) -> bool:
    """Whether another try may succeed."""
    if isinstance(error, DeadlineExceeded):
        return True  # the try's own timeout; the run's deadline would have cancelled this task
    return isinstance(error, Exception) and not isinstance(error, _PERMANENT)

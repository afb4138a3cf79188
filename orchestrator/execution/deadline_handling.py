"""What a run comes to when its deadline passes: an error, a graceful end, the best so far."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from orchestrator.durability.identity import WRAP_UP
from orchestrator.durability.values import ValueCodec
from orchestrator.errors import DeadlineExceeded
from orchestrator.execution.context import CallContext, LiveRun, current_context, using_context
from orchestrator.execution.step_execution import record_value

R = TypeVar("R")
T = TypeVar("T")

_SECONDS = ValueCodec("a time", float)

OnDeadline = Literal["fail", "wrap_up", "best_so_far"]

TAIL_SHARE = 0.1
"""Of a deadline, what is kept for wrapping up where the flow does not say how much."""

AGAIN_S = 10.0
"""Work that its deadline has cancelled is cancelled again if it goes on for so long."""


@dataclass(frozen=True, slots=True)
class DeadlineHandling:
    """What a flow does at its deadline.

    Attributes:
        on_deadline: "fail" with DeadlineExceeded; "wrap_up" in a tail of the deadline that the
            rest of the flow cannot use; return the "best_so_far".
        wrap_up: makes the result from the best so far (None without one), in that tail.
        tail_s: how long it may take; None: TAIL_SHARE of the deadline.
    """

    on_deadline: OnDeadline = "fail"
    wrap_up: Callable[[Any], Awaitable[Any]] | None = None
    tail_s: float | None = None

    def __post_init__(self) -> None:
        if self.on_deadline not in ("fail", "wrap_up", "best_so_far"):
            raise ValueError(f"on_deadline={self.on_deadline!r}: fail, wrap_up or best_so_far")
        if (self.on_deadline == "wrap_up") != (self.wrap_up is not None):
            raise ValueError("on_deadline='wrap_up' and wrap_up= go together")

    def reserved_s(self, deadline_s: float) -> float:
        """Seconds of a deadline that are kept for wrapping up."""
        if self.on_deadline != "wrap_up":
            return 0.0
        return min(TAIL_SHARE * deadline_s if self.tail_s is None else self.tail_s, deadline_s)


def best_so_far(value: T) -> T:
    """Say what the flow should come to if its deadline passed now; returns the value.

    Used with on_deadline="best_so_far", and given to wrap_up; each call replaces the last.

    Raises:
        OutsideRun: not within a flow.
    """
    best = current_context("best_so_far()").best
    best[:] = [value]
    return value


async def run_by_deadline(
    context: CallContext,
    what: str,
    deadline_s: float,
    deadline_handling: DeadlineHandling,
    work: Callable[[], Awaitable[R]],
) -> R:
    """Do work until its deadline, and then what its expiry says.

    Raises:
        DeadlineExceeded: the deadline passed, and nothing else was asked for or was there in time.
    """
    tail_s = deadline_handling.reserved_s(deadline_s)
    inner = context.derive(deadline_at_s=context.deadline_at_s - tail_s)
    expired, value = await _until(inner, work)
    if not expired:
        result: R = value
        return result
    if deadline_handling.on_deadline == "best_so_far" and context.best:
        best: R = context.best[-1]
        return best
    if deadline_handling.wrap_up is not None:
        wrap_up, so_far = deadline_handling.wrap_up, context.best[-1] if context.best else None
        # Steps of its own places: a resumed run may be cut off earlier than it was before.
        apart = context.derive(step_path=context.step_path.apart(WRAP_UP))
        expired, value = await _until(apart, lambda: wrap_up(so_far))
        if not expired:
            wrapped: R = value
            return wrapped
    raise DeadlineExceeded(what, deadline_s)


async def run_by_own_deadline(
    context: CallContext,
    what: str,
    deadline_s: float | None,
    deadline_handling: DeadlineHandling,
    work: Callable[[], Awaitable[R]],
) -> R:
    """Do the work of a flow within another one: its deadline can only come earlier than that one's.

    It counts from where it first began, however late it is gone on with.

    Raises:
        DeadlineExceeded: as `run_by_deadline`.
    """
    run, own = context.run, context.derive(best=[])
    if deadline_s is None:
        with using_context(own):
            return await work()
    ends_s = record_value(context, "deadline", _SECONDS, lambda: run.since_start_s() + deadline_s)
    limited = own.derive(deadline_at_s=min(context.deadline_at_s, run.started_s + ends_s))
    return await run_by_deadline(
        limited, what, max(limited.remaining_s(), 0.0), deadline_handling, work
    )


async def _until(context: CallContext, work: Callable[[], Awaitable[Any]]) -> tuple[bool, Any]:
    """Whether the deadline of a position passed before the work was done, and what that came to."""
    try:
        with using_context(context):
            async with cancel_after(context.remaining_s()) as limit:
                return False, await work()
    except (TimeoutError, asyncio.CancelledError) as error:
        if not is_expiry(error, limit, context.run):
            raise
        return True, None


@asynccontextmanager
async def cancel_after(allowed_s: float) -> AsyncIterator[asyncio.Timeout]:
    """Cancel a block after so long as asyncio.timeout does, and every AGAIN_S while it goes on.

    A cancellation can be lost: to a TaskGroup that fails at the same moment (before Python 3.13),
    to whoever catches all errors.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a timeout is entered within a task"
    repeats: list[asyncio.TimerHandle] = []

    def repeat() -> None:
        task.cancel()
        repeats.append(loop.call_later(AGAIN_S, repeat))

    async with asyncio.timeout(allowed_s) as limit:
        repeats.append(loop.call_later(max(allowed_s, 0.0) + AGAIN_S, repeat))
        try:
            yield limit
        finally:
            repeats[-1].cancel()
            for _ in repeats[1:]:  # the first cancellation is taken back by the timeout
                task.uncancel()


def is_expiry(
    error: TimeoutError | asyncio.CancelledError,
    limit: asyncio.Timeout,
    run: LiveRun,
    *,
    around: CallContext | None = None,
) -> bool:
    """Whether an error is the end that a limit set.

    It is a CancelledError where the flow left asyncio's count of cancellations wrong, as Python
    3.11's own TaskGroup does when it fails. The same comes of a cancellation of whoever waits for
    the run, or of the deadline `around` the limit, which no expiry may hide.
    """
    if isinstance(error, TimeoutError) or not limit.expired():
        return limit.expired()
    return not run.was_cancelled() and (around is None or around.remaining_s() > 0)

"""What happens when a deadline passes: an error, a wrap-up, or the best result so far."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from orchestrator.durability.identity import WRAP_UP
from orchestrator.durability.values import ValueCodec
from orchestrator.errors import DeadlineExceeded
from orchestrator.execution.context import CallContext, LiveRun, current_context, using_context
from orchestrator.execution.recorded_values import record_value
from orchestrator.learning.stage_deadlines import is_shorter

R = TypeVar("R")
T = TypeVar("T")

_SECONDS = ValueCodec("a time", float)

OnDeadline = Literal["fail", "wrap_up", "best_so_far"]

TAIL_SHARE = 0.1
"""Default share of a deadline that is reserved for `wrap_up`."""

RECHECK_S = 0.001
"""Seconds until a limit that came while recorded outcomes are replayed is looked at again."""

RECHECK_STOPPED_S = 0.1
"""Seconds until a limit that came while the run's clock is stopped is looked at again, at least."""

RECANCEL_S = 10.0
"""Seconds after which cancelled work is cancelled again if it still runs."""


@dataclass(frozen=True, slots=True)
class DeadlineHandling:
    """What a flow does at its deadline.

    Attributes:
        on_deadline: "fail": raise DeadlineExceeded; "wrap_up": call `wrap_up` in a tail of the
            deadline that is reserved for it; "best_so_far": return the best result so far.
        wrap_up: makes the result from the best so far (None without one).
        tail_s: how much of the deadline is reserved for `wrap_up`; None: TAIL_SHARE of it.
    """

    on_deadline: OnDeadline = "fail"
    wrap_up: Callable[[Any], Awaitable[Any]] | None = None
    tail_s: float | None = None

    def __post_init__(self) -> None:
        if self.on_deadline not in ("fail", "wrap_up", "best_so_far"):
            raise ValueError(
                f"on_deadline={self.on_deadline!r} must be 'fail', 'wrap_up' or 'best_so_far'"
            )
        if (self.on_deadline == "wrap_up") != (self.wrap_up is not None):
            raise ValueError("on_deadline='wrap_up' and wrap_up= must be given together")

    def reserved_s(self, deadline_s: float) -> float:
        """Seconds of a deadline that are reserved for `wrap_up`."""
        if self.on_deadline != "wrap_up":
            return 0.0
        return min(TAIL_SHARE * deadline_s if self.tail_s is None else self.tail_s, deadline_s)


@dataclass(slots=True, eq=False)
class _Limit:
    """A time limit on a block that runs.

    Attributes:
        due_s: when its time is up, on the event loop's clock, if the run's clock does not stop.
        timeout: which cancels the block.
        around: the limit on the block around.
        inner: the limits on blocks within the block.
    """

    due_s: float
    timeout: asyncio.Timeout
    around: _Limit | None
    inner: set[_Limit] = field(default_factory=set)


_limit_here: ContextVar[_Limit | None] = ContextVar("orchestrate_limit", default=None)


def best_so_far(value: T) -> T:
    """Keep a value as the flow's result in case its deadline passes; returns the value.

    It is the result with on_deadline="best_so_far", and the argument of `wrap_up`. Each call
    replaces the value before.

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
    expired: Callable[[], None] = lambda: None,
) -> R:
    """Run work until its deadline; if that passes first, handle it as `deadline_handling` says.

    Args:
        what: names the work in errors.
        deadline_s: the whole deadline, of which a tail may be reserved.
        expired: called if the deadline, or the time before the tail, has passed first.
    Raises:
        DeadlineExceeded: the deadline passed, and no other result was asked for or ready in time.
    """
    tail_s = deadline_handling.reserved_s(deadline_s)
    inner = context.derive(deadline_at_s=context.deadline_at_s - tail_s)
    is_late, value = await _until(inner, work)
    if not is_late:
        result: R = value
        return result
    expired()
    if deadline_handling.on_deadline == "best_so_far" and context.best:
        best: R = context.best[-1]
        return best
    if deadline_handling.wrap_up is not None:
        wrap_up, so_far = deadline_handling.wrap_up, context.best[-1] if context.best else None
        # Its steps are numbered apart: a resumed run may be cut off after fewer steps than before.
        wrap_up_context = context.derive(step_path=context.step_path.isolated(WRAP_UP))
        is_late, value = await _until(wrap_up_context, lambda: wrap_up(so_far))
        if not is_late:
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
    """Run a flow within another one; it can shorten the deadline around it, but not extend it.

    Its deadline counts from when it first began, even if the run is resumed later.

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
    """Run work until its context's deadline; returns whether that passed first, and the result."""
    try:
        with using_context(context):
            async with cancel_after(context.remaining_s(), context.run) as limit:
                return False, await work()
    except (TimeoutError, asyncio.CancelledError) as error:
        if not is_expiry(error, limit, context):
            raise
        within = f"{context.step_path.text}/".lstrip("/")
        context.run.recorder.order.drop_unbegun(
            lambda path: path.startswith(within) and f"[{WRAP_UP}]" not in path
        )
        return True, None


@asynccontextmanager
async def cancel_after(allowed_s: float, run: LiveRun) -> AsyncIterator[asyncio.Timeout]:
    """Cancel a block after `allowed_s`, as asyncio.timeout does; see `cancel_when`.

    The time for which the run's clock is stopped does not count. In a resumed run the time of
    nested limits may have passed long ago: the inner ones come first, as they did.

    Raises:
        TimeoutError: the time had passed, even if the block caught the cancellation and ended.
    """
    loop, order = asyncio.get_running_loop(), run.recorder.order
    timers: list[asyncio.TimerHandle] = []  # the one that is pending
    stopped_s = run.clock.stopped_s  # that was waited for already

    async with cancel_when(run) as (limit, expire), _nested(loop.time() + allowed_s, limit) as here:

        def time_is_up() -> None:
            nonlocal stopped_s
            is_inner_due = order.expects_more and any(
                inner.due_s <= loop.time() for inner in here.inner
            )
            if order.is_replaying or is_inner_due:
                timers[:] = [loop.call_later(RECHECK_S, time_is_up)]
                return
            owed_s, stopped_s = run.clock.stopped_s - stopped_s, run.clock.stopped_s
            if owed_s > 0 or run.clock.is_stopped:
                least_s = RECHECK_STOPPED_S if run.clock.is_stopped else 0.0
                timers[:] = [loop.call_later(max(owed_s, least_s), time_is_up)]
                return
            expire()

        timers[:] = [loop.call_later(max(allowed_s, 0.0), time_is_up)]
        try:
            yield limit
        finally:
            timers[0].cancel()


@asynccontextmanager
async def _nested(due_s: float, timeout: asyncio.Timeout) -> AsyncIterator[_Limit]:
    """A block with a time limit, which the limits around it know of."""
    around = _limit_here.get()
    here = _Limit(due_s, timeout, around)
    token = _limit_here.set(here)
    if around is not None:
        around.inner.add(here)
    try:
        yield here
    finally:
        if around is not None:
            around.inner.discard(here)
        _limit_here.reset(token)


@asynccontextmanager
async def cancel_when(run: LiveRun) -> AsyncIterator[tuple[asyncio.Timeout, Callable[[], None]]]:
    """Cancel a block when the yielded function is called, and every RECANCEL_S after that.

    Recorded outcomes that are just being replayed come first: they came before the call.

    A cancellation can be lost: in a TaskGroup that fails at the same moment (before Python 3.13),
    or in code that catches all errors.

    Raises:
        TimeoutError: it was called, even if the block caught the cancellation and ended.
    """
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None, "a timeout is entered within a task"
    timers: list[asyncio.TimerHandle] = []  # the one that is pending
    num_repeats = 0

    def expire() -> None:
        if not timers:
            begin()

    def begin() -> None:
        if run.recorder.order.is_replaying:
            timers[:] = [loop.call_later(RECHECK_S, begin)]
            return
        limit.reschedule(loop.time())
        timers[:] = [loop.call_later(RECANCEL_S, repeat)]

    def repeat() -> None:
        nonlocal num_repeats
        task.cancel()
        num_repeats += 1
        timers[:] = [loop.call_later(RECANCEL_S, repeat)]

    async with asyncio.timeout(None) as limit:
        try:
            yield limit, expire
        finally:
            for timer in timers:
                timer.cancel()
            for _ in range(num_repeats):  # asyncio.timeout itself takes back the first cancellation
                task.uncancel()
    if limit.expired():
        raise TimeoutError


def is_expiry(
    error: TimeoutError | asyncio.CancelledError,
    limit: asyncio.Timeout,
    limited: CallContext,
    *,
    around: CallContext | None = None,
) -> bool:
    """Whether an error is the expiry of a time limit, which is the deadline of `limited`.

    An expired limit raises CancelledError instead of TimeoutError if asyncio's count of
    cancellations is wrong, as after the failure of a TaskGroup in Python 3.11. A CancelledError
    may also mean that the caller of the run was cancelled, or that the deadline of the context
    `around` the limit has passed; those are not expiries of this limit. It comes from a step, and
    perhaps earlier than asyncio's own timer, if the step would have begun after the deadline. If
    both deadlines have passed, as in a resumed run, the earlier one counts first.
    """
    if isinstance(error, TimeoutError):
        return limit.expired()
    if not limit.expired() and limited.remaining_s() > 0:
        return False
    if limited.run.was_cancelled():
        return False
    if around is None or around.remaining_s() > 0:
        return True
    return is_shorter(limited.deadline_at_s, around.deadline_at_s) and not _has_expired_around()


def _has_expired_around() -> bool:
    """Whether a limit on the code around has cancelled it."""
    limit = _limit_here.get()
    while limit is not None and not limit.timeout.expired():
        limit = limit.around
    return limit is not None

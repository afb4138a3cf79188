"""within, remaining, has_deadline: the deadline of the current code."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.durability.values import ValueCodec
from orchestrator.durations import Duration, seconds_of
from orchestrator.errors import DeadlineExceeded
from orchestrator.execution.context import current_context, using_context
from orchestrator.execution.deadline_handling import cancel_after, is_expiry
from orchestrator.execution.recorded_values import record_value

SECONDS = ValueCodec("a time", float)


@asynccontextmanager
async def within(duration: Duration) -> AsyncIterator[None]:
    """Shorten the deadline for a block; the block is cancelled when it passes.

    The deadline around the block still holds: a longer duration has no effect. With a shorter one
    the engine is asked to end this block's calls, but not the rest of the run, by then.

    Raises:
        DeadlineExceeded: the block's deadline passed, or the one around it has passed already.
        InvalidDuration: not a duration.
    """
    context = current_context("within()")
    run = context.run
    here = context.step_path.text or run.flow

    # A share of remaining() may be 0 after the deadline, and must not raise InvalidDuration.
    allowed_s = 0.0 if context.remaining_s() <= 0 else seconds_of(duration)
    if allowed_s <= 0 and not run.recorded_steps:
        raise DeadlineExceeded(here, 0.0)
    began_s = run.since_start_s()
    # Recorded, so that a resumed run has the same limit, counted from the first execution.
    until_s = record_value(context, "within", SECONDS, lambda: began_s + allowed_s)
    deadline_at_s = min(context.deadline_at_s, run.started_s + until_s)
    limited = context.derive(deadline_at_s=deadline_at_s)
    with using_context(limited):
        try:
            async with cancel_after(max(until_s - began_s, 0.0), run) as limit:
                yield
        except (TimeoutError, asyncio.CancelledError) as error:
            if not is_expiry(error, limit, limited, around=context):
                raise
            raise DeadlineExceeded(here, allowed_s) from None


def remaining() -> float:
    """Seconds until the current deadline, at least 0; infinity without a deadline.

    The value is recorded, so that a resumed run gets the same one and takes the same branches.
    """
    context = current_context("remaining()")
    if math.isinf(context.deadline_at_s):
        return math.inf
    return record_value(context, "remaining", SECONDS, lambda: max(context.remaining_s(), 0.0))


def has_deadline() -> bool:
    """Whether the current code has a deadline."""
    return not math.isinf(current_context("has_deadline()").deadline_at_s)

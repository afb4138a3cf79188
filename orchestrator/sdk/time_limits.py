"""within, remaining, has_deadline: the deadline of the code that runs now."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.durability.values import ValueCodec
from orchestrator.durations import seconds_of
from orchestrator.errors import DeadlineExceeded
from orchestrator.execution.context import current_context, using_context
from orchestrator.execution.deadline_handling import cancel_after, is_expiry
from orchestrator.execution.step_execution import record_value

SECONDS = ValueCodec("a time", float)


@asynccontextmanager
async def within(duration: str | float) -> AsyncIterator[None]:
    """Shorten the deadline for a block, and cancel what is not done by then.

    The deadline around the block still holds: a longer duration changes nothing. A shorter one is
    a promise of its own: the engine is asked to end this block's calls by then, and not the run.

    Raises:
        DeadlineExceeded: the block's own limit passed, or the one around it has already.
        InvalidDuration: not a duration.
    """
    context = current_context("within()")
    run = context.run
    here = context.step_path.text or run.flow

    # A share of what remains may be 0 by now, and is no wrong duration.
    allowed_s = 0.0 if context.remaining_s() <= 0 else seconds_of(duration)
    if allowed_s <= 0 and not run.recorded_steps:
        raise DeadlineExceeded(here, 0.0)
    began_s = run.since_start_s()
    # The same when the run is resumed, however late that is.
    until_s = record_value(context, "within", SECONDS, lambda: began_s + allowed_s)
    deadline_at_s = min(context.deadline_at_s, run.started_s + until_s)
    with using_context(context.derive(deadline_at_s=deadline_at_s)):
        try:
            async with cancel_after(max(until_s - began_s, 0.0)) as limit:
                yield
        except (TimeoutError, asyncio.CancelledError) as error:
            if not is_expiry(error, limit, run, around=context):
                raise
            raise DeadlineExceeded(here, allowed_s) from None


def remaining() -> float:
    """Seconds until the deadline here: infinity where there is none, never below 0.

    A resumed run is told what it was told before, so that it decides alike.
    """
    context = current_context("remaining()")
    if math.isinf(context.deadline_at_s):
        return math.inf
    return record_value(context, "remaining", SECONDS, lambda: max(context.remaining_s(), 0.0))


def has_deadline() -> bool:
    """Whether the code that runs now has a deadline."""
    return not math.isinf(current_context("has_deadline()").deadline_at_s)

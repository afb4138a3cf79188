"""budget: limits what the LLM calls of a block use."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from orchestrator.durability.values import ValueCodec
from orchestrator.errors import BudgetExceeded
from orchestrator.execution.budgets import Budget, nothing
from orchestrator.execution.context import CallContext, current_context, using_context
from orchestrator.execution.deadline_handling import cancel_when
from orchestrator.execution.recorded_values import record_value

_LIMITS = ValueCodec("a budget", list[int | None])


@asynccontextmanager
async def budget(*, tokens: int | None = None, calls: int | None = None) -> AsyncIterator[Budget]:
    """Limit what the LLM calls of a block may use; counted in all its branches and steps.

    Once it is spent, no LLM call begins: the next one ends the block, as a deadline does. Its
    branches are cancelled, their calls are aborted, and no step begins in it. The call that spends
    it ends normally, so that the block may use more tokens than allowed, but no more calls. A
    resumed run counts its recorded calls too, so that a block that had ended so does again, unless
    it is given more or asks for less.

    Args:
        tokens: of prompts and answers together, cached ones included. Those of a call that
            `llm_stream` left early are estimated from the texts; calls that fail or are cut off
            count none.
        calls: number of LLM calls, those that fail or are aborted included.
    Yields:
        The budget, with the `tokens` and `calls` used so far.
    Raises:
        BudgetExceeded: a call would have begun after it was spent.
        ValueError: no limit is given, or one is no whole number from 0 on.
        OutsideRun: not within a flow.
    """
    limits = [tokens, calls]
    if limits == [None, None]:
        raise ValueError("budget() needs a limit: tokens= or calls=")
    for limit in limits:
        if limit is not None and (
            not isinstance(limit, int) or isinstance(limit, bool) or limit < 0
        ):
            raise ValueError(f"a budget is a whole number from 0 on, not {limit!r}")
    record_value(current_context("budget()"), "budget", _LIMITS, lambda: limits)
    context = current_context("budget()")
    here = Budget(tokens, calls)
    inner = context.derive(budgets=(*context.budgets, here))
    try:
        async with cancel_when(context.run) as (limit_reached, here.end):
            with using_context(inner):
                yield here
    except (TimeoutError, asyncio.CancelledError) as error:
        if isinstance(error, TimeoutError) and not limit_reached.expired():
            raise
        if not here.is_exceeded or _is_ending(context):
            raise
    finally:
        here.end = nothing  # a task that outlives the block
    if here.is_exceeded:
        what = context.step_path.text or context.run.flow
        raise BudgetExceeded(what, here.tokens, tokens, here.calls, calls) from None


def _is_ending(context: CallContext) -> bool:
    """Whether the code around is cut off too: by a deadline, a budget or a cancellation."""
    return (
        context.run.was_cancelled()
        or context.remaining_s() <= 0
        or any(around.is_exceeded for around in context.budgets)
    )

"""The recorded outcome of a run, step or call: its status, error class and error message."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from orchestrator.errors import BudgetExceeded, DeadlineExceeded, OutsideRun, RunInterrupted
from serving.errors import EngineBusy, EngineClosed, PromptTooLong, RequestDropped
from store.errors import StoreError
from store.records import Status, StepRecord

MESSAGE_LIMIT = 500
"""Longest recorded error message, in characters."""

# Their messages hold names, ids and numbers only. Any other error may quote a user's text.
_QUOTES_NOTHING = (
    BudgetExceeded,
    DeadlineExceeded,
    OutsideRun,
    PromptTooLong,
    RequestDropped,
    EngineBusy,
    EngineClosed,
    StoreError,
)


def status_of(error: BaseException | None) -> Status:
    """The status of something that ended with this error; None: without one.

    A run that was interrupted has not ended.
    """
    if error is None:
        return Status.COMPLETED
    if isinstance(error, RunInterrupted):
        return Status.RUNNING
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return Status.CANCELLED
    return Status.FAILED


def text_of(value: object, show: Callable[[object], str] = str) -> str:
    """A value as text; an error of its `__str__` is shown instead, so that it cannot end a run."""
    try:
        return show(value)
    except Exception as error:
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def type_of(error: BaseException | None) -> str | None:
    """The name of an error's class."""
    return None if error is None else type(error).__name__


def message_of(error: BaseException | None, *, may_quote: bool) -> str | None:
    """An error's message, at most MESSAGE_LIMIT characters; None if it may quote a user's text.

    Args:
        may_quote: whether users' texts may be recorded.
    """
    if error is None or not (may_quote or isinstance(error, _QUOTES_NOTHING)):
        return None
    return text_of(error)[:MESSAGE_LIMIT]


def end_of(step: StepRecord) -> tuple[float, float]:
    """When a step ended, or began if it runs; of equal times the order of the outcomes decides."""
    ended_s = step.started_s if step.finished_s is None else step.finished_s
    return ended_s, math.inf if step.outcome_number is None else step.outcome_number

"""How something ended, by the error that ended it, as it is recorded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from orchestrator.errors import DeadlineExceeded, OutsideRun
from serving.errors import EngineBusy, EngineClosed, PromptTooLong, RequestDropped
from store.errors import StoreError
from store.records import Status

MESSAGE_LIMIT = 500
"""Longest recorded error message, in characters."""

# What these say is made of names, ids and numbers. Any other error may quote what users wrote.
_QUOTES_NOTHING = (
    DeadlineExceeded,
    OutsideRun,
    PromptTooLong,
    RequestDropped,
    EngineBusy,
    EngineClosed,
    StoreError,
)


def status_of(error: BaseException | None) -> Status:
    """How something ended, by the error that ended it."""
    if error is None:
        return Status.COMPLETED
    if isinstance(error, asyncio.CancelledError | KeyboardInterrupt):
        return Status.CANCELLED
    return Status.FAILED


def text_of(value: object, show: Callable[[object], str] = str) -> str:
    """A value as text; a class that cannot show its values must not end a run."""
    try:
        return show(value)
    except Exception as error:
        return f"<{type(value).__name__} that cannot be shown: {type(error).__name__}>"


def type_of(error: BaseException | None) -> str | None:
    """The name of an error's class."""
    return None if error is None else type(error).__name__


def message_of(error: BaseException | None, *, may_quote: bool) -> str | None:
    """What an error says, unless that may be a user's text, which is not to be kept."""
    if error is None or not (may_quote or isinstance(error, _QUOTES_NOTHING)):
        return None
    return text_of(error)[:MESSAGE_LIMIT]

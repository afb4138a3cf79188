"""Ctrl-C and SIGTERM: cancel the work, so that it is recorded as cancelled, then exit."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import typer

from cli.errors import Interrupted
from cli.terminal.output import complain, say

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_S = 1.0
"""How long an orderly end may take if no run has begun; the store survives any other end."""


def run_until_interrupted(
    work: Coroutine[Any, Any, T],
    *,
    run_id: Callable[[], str | None] = lambda: None,
    exit_code: Callable[[], int | None] = lambda: None,
    interrupted: Callable[[int], Interrupted] | None = None,
) -> T:
    """Run work in a new event loop; the first signal cancels it, a second one exits at once.

    Args:
        run_id: asked after an interruption: the run that the work had begun.
        exit_code: asked at a signal: the command's exit code if its result is delivered already
            and only closing is interrupted; None before.
        interrupted: the error for a signal's number, for work that is no run.
    Raises:
        Interrupted: a signal came before the work was done.
        And whatever the work raises.
    """
    error_of = interrupted or (lambda number: Interrupted(number, run_id()))

    def leave(number: int) -> None:
        complain(str(error_of(number)))
        os._exit(128 + number)

    def on_signal(number: int, is_first: bool) -> None:
        code = exit_code()
        if not is_first or code is not None:
            os._exit(128 + number if code is None else code)
        say("stopping; once more leaves at once")
        if run_id() is None:
            # An engine that is loading cannot be stopped, and there is nothing to record.
            asyncio.get_running_loop().call_later(PATIENCE_S, leave, number)

    return asyncio.run(_cancelled_by_signal(work, on_signal, error_of))


def run_until_dismissed(work: Coroutine[Any, Any, None]) -> None:
    """Run work that only shows something: a signal ends it without a word, as nothing is lost.

    Raises:
        typer.Exit: a signal came; with its exit code.
    """
    asyncio.run(
        _cancelled_by_signal(
            work, lambda number, is_first: None, lambda number: typer.Exit(128 + number)
        )
    )


async def _cancelled_by_signal(
    work: Coroutine[Any, Any, T],
    on_signal: Callable[[int, bool], None],
    error_of: Callable[[int], Exception],
) -> T:
    """Do work that SIGINT and SIGTERM cancel.

    Args:
        on_signal: called with the signal's number, and whether it is the first.
        error_of: what is raised instead of CancelledError once a signal has cancelled the work.
    """
    received: list[int] = []
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)

    def handle(number: int) -> None:
        on_signal(number, not received)
        received.append(number)
        task.cancel()

    for number in SIGNALS:
        loop.add_signal_handler(number, handle, number)
    try:
        return await task
    except asyncio.CancelledError:
        if not received:
            raise
        raise error_of(received[0]) from None
    finally:
        # While the loop closes, a signal ends the process in the ordinary way.
        for number in SIGNALS:
            loop.remove_signal_handler(number)

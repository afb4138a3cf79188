"""Ctrl-C and SIGTERM: cancel the work, so that it is recorded as cancelled, then exit."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from cli.errors import Interrupted
from cli.terminal.output import complain, say

T = TypeVar("T")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
PATIENCE_S = 1.0
"""How long an orderly end may take where no run has begun; the store survives any other."""


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
        exit_code: asked at a signal: how the command ends if its result is delivered already
            and only what is left to close is interrupted; None before.
        interrupted: the error for a signal's number, for work that is no run.
    Raises:
        Interrupted: a signal came before the work was done.
        And whatever the work raises.
    """
    came: list[int] = []
    named = interrupted or (lambda number: Interrupted(number, run_id()))

    async def watched() -> T:
        loop = asyncio.get_running_loop()
        task = asyncio.ensure_future(work)

        def on_signal(number: int) -> None:
            code = exit_code()
            if came or code is not None:
                os._exit(128 + number if code is None else code)
            came.append(number)
            say("stopping; once more leaves at once")
            task.cancel()
            if run_id() is None:
                # An engine that is just loading cannot be stopped, and there is nothing to record.
                loop.call_later(PATIENCE_S, leave, number)

        def leave(number: int) -> None:
            complain(str(named(number)))
            os._exit(128 + number)

        for number in SIGNALS:
            loop.add_signal_handler(number, on_signal, number)
        try:
            return await task
        except asyncio.CancelledError:
            if not came:
                raise
            raise named(came[0]) from None
        finally:
            # While the loop closes, a signal ends the process in the ordinary way.
            for number in SIGNALS:
                loop.remove_signal_handler(number)

    return asyncio.run(watched())

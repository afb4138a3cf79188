"""Async work in nodes and tools that are plain functions."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any, TypeVar

from orchestrator.errors import OutsideRun
from orchestrator.execution.context import current_context_or_none, set_context
from orchestrator.langgraph.callbacks import activity_here
from orchestrator.langgraph.event_loops import run_on_loop

T = TypeVar("T")


def run_blocking(work: Coroutine[Any, Any, T]) -> T:
    """Await something in a plain function, which LangGraph runs in a thread.

        done = run_blocking(current_workspace().run("pytest -q"))

    Raises:
        OutsideRun: there is no run here.
        WouldBlock: this is the run's event loop: make the function async, and await the work.
        RunEnded: it was cancelled, as at the deadline.
        And what the work raises.
    """
    context, activity = current_context_or_none(), activity_here()

    async def run() -> T:
        if activity is not None:
            recorder, run_id = activity
            node = recorder.context(run_id)
            if node is not None:
                set_context(node)
        return await work

    try:
        if context is None or context.run.loop is None:
            raise OutsideRun("run_blocking()")
        return run_on_loop(context.run.loop, "run_blocking()", run)
    finally:
        work.close()  # it may never have begun

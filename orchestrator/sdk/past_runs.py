"""Looks at past runs: their timelines, and what is learned from them. For notebooks and scripts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from orchestrator.display.timeline import Timeline
from orchestrator.runtime.handle import RunHandle
from orchestrator.runtime.results import RunResult
from orchestrator.settings import read_settings
from store.errors import RunNotFound
from store.records import Status

if TYPE_CHECKING:
    from patterns.library import PatternLibrary
    from store.session import Store

T = TypeVar("T")


def timeline(
    run: RunResult[Any] | RunHandle[Any] | str | None = None, *, store: str | None = None
) -> Timeline:
    """When a run's steps, LLM calls and tools took place, against its deadline.

    A notebook shows it as a picture, `print` as text; `.svg` is the picture as a file.

    Args:
        run: a result; a handle, also of a run that is still running; a run's id, or the beginning
            of it; None: the newest run of the store.
        store: URL of the store to look in; by default the one of the settings.
    Raises:
        RunNotFound, RunAmbiguous: no run's id begins like this, or several do; or there are none.
        StoreError: the store cannot be read.
    """
    if isinstance(run, RunResult | RunHandle):
        if run.log is not None:
            return run.log.timeline()
        run = run.run_id if isinstance(run, RunResult) else run.id
    prefix = run

    async def read(opened: Store) -> Timeline:
        async with opened.reading() as tx:
            record = await (tx.runs.find(prefix) if prefix else tx.runs.latest())
            if record is None:
                raise RunNotFound(prefix or "")
            calls, steps = await tx.calls.of_run(record.id), await tx.journal.of_run(record.id)
        now_s = None
        if record.status is Status.RUNNING:  # the last thing that is known of it
            times = [call.finished_s or call.started_s for call in calls]
            times += [step.finished_s or step.started_s for step in steps]
            now_s = max(times, default=0.0)
        return Timeline(record, calls, steps, now_s)

    return _read(store, read)


def past_runs(flow: str, *, store: str | None = None) -> PatternLibrary:
    """What is known of the past runs of a flow: their stages, times and tokens, without texts.

    A later run is compared with these patterns to find its sub-deadlines. A notebook shows them
    as bars; `orchestrate patterns show FLOW` does in a terminal.

    Args:
        flow: its name. A flow that has never completed has an empty library.
        store: URL of the store to look in; by default the one of the settings.
    Raises:
        StoreError: the store cannot be read.
    """
    from orchestrator.learning.knowledge import kernel_of, readable_patterns
    from patterns.library import PatternLibrary

    async def read(opened: Store) -> PatternLibrary:
        async with opened.reading() as tx:
            records = await tx.patterns.of_application(flow, in_library=True)
            fit = await tx.fits.get(flow)
        return PatternLibrary(readable_patterns(records), kernel_of(fit))

    return _read(store, read)


def _read(url: str | None, read: Callable[[Store], Awaitable[T]]) -> T:
    """Read from a store in a thread of its own: the caller's event loop may be running."""
    from store.session import open_store

    async def work() -> T:
        async with await open_store(url or read_settings().store) as store:
            return await read(store)

    with ThreadPoolExecutor(1, thread_name_prefix="orchestrate-read") as thread:
        return thread.submit(lambda: asyncio.run(work())).result()

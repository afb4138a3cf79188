"""Passes what happens in runs to their handles and logs, and to listeners of all runs."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.display.run_log import RunLog
from orchestrator.events import Event, Listener
from orchestrator.runtime.handle import RunHandle
from store.records import RunRecord

if TYPE_CHECKING:
    from orchestrator.execution.context import LiveRun

logger = logging.getLogger("orchestrate")


class EventDelivery:
    """The handles and listeners of one runtime.

    Args:
        listeners: called with every event of every run.
    """

    def __init__(self, listeners: Sequence[Listener]) -> None:
        self._listeners = list(listeners)
        self._by_task: dict[asyncio.Task[Any], RunHandle[Any]] = {}
        self._by_run: dict[str, RunHandle[Any]] = {}

    def add(self, handle: RunHandle[Any], task: asyncio.Task[Any]) -> None:
        """Keep a handle until its task, in which its run is executed, ends."""
        self._by_task[task] = handle
        task.add_done_callback(lambda _: self._forget(handle, task))

    def handle_here(self) -> RunHandle[Any] | None:
        """The handle whose task calls this; None: it has none."""
        task = asyncio.current_task()
        return None if task is None else self._by_task.get(task)

    def beginning(self, run_id: str) -> RunHandle[Any] | None:
        """A handle of this run, if its start is not recorded yet."""
        if run_id in self._by_run:
            return None
        return next((each for each in self._by_task.values() if each.id == run_id), None)

    def keep_log(self, live: LiveRun, record: RunRecord) -> None:
        """Keep a run's events in a log, for its result and its handle."""
        log = live.log = RunLog(record, since_start_s=live.since_start_s)

        def keep_and_emit(event: Event) -> None:
            log.add(event)
            self.emit(event)

        live.emit = keep_and_emit

    def begun(self, live: LiveRun, handle: RunHandle[Any]) -> None:
        """Pass the events of a run whose start is recorded to its handle.

        Not before: of several runs that begin under one id at the same time only one does.
        """
        self._by_run[live.id] = handle
        handle.log = live.log
        live.text_listener = handle.text_listener
        handle.mark_begun()

    def emit(self, event: Event) -> None:
        """Call the listeners; one that raises is removed, so that no display can end a run."""
        if (handle := self._by_run.get(event.run_id)) is not None:
            handle.publish(event)
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                self._listeners.remove(listener)
                logger.exception("on_event failed and will not be called again: %r", listener)

    def _forget(self, handle: RunHandle[Any], task: asyncio.Task[Any]) -> None:
        del self._by_task[task]
        if self._by_run.get(handle.id) is handle:
            del self._by_run[handle.id]

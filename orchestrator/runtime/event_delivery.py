"""Passes what happens in runs to their handles and logs, and to listeners of all runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from orchestrator.display.run_log import RunLog
from orchestrator.events import Event, Listener
from orchestrator.runtime.handle import RunHandle
from store.records import RunRecord, Status

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
        self._handles: dict[str, RunHandle[Any]] = {}

    def add(self, handle: RunHandle[Any]) -> None:
        """Pass the events of a run to its handle, unless another one of it is running."""
        former = self._handles.get(handle.id)
        if former is None or former.status is not Status.RUNNING:
            self._handles[handle.id] = handle
            handle.when_ended(lambda: self._forget(handle))

    def handle_of(self, run_id: str) -> RunHandle[Any] | None:
        """The running handle of a run; None: it has none."""
        return self._handles.get(run_id)

    def attach(self, live: LiveRun, record: RunRecord) -> None:
        """Keep a run's events in a log, for its result and its handle."""
        log = live.log = RunLog(record, since_start_s=live.since_start_s)
        if (handle := self._handles.get(live.id)) is not None:
            handle.log = log
            live.text_listener = handle.text_listener

        def keep_and_emit(event: Event) -> None:
            log.add(event)
            self.emit(event)

        live.emit = keep_and_emit

    def emit(self, event: Event) -> None:
        """Call the listeners; one that raises is removed, so that no display can end a run."""
        if (handle := self._handles.get(event.run_id)) is not None:
            handle.publish(event)
        for listener in tuple(self._listeners):
            try:
                listener(event)
            except Exception:
                self._listeners.remove(listener)
                logger.exception("on_event failed and will not be called again: %r", listener)

    def _forget(self, handle: RunHandle[Any]) -> None:
        if self._handles.get(handle.id) is handle:
            del self._handles[handle.id]

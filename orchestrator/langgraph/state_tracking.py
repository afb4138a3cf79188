"""In which state the tasks of a graph leave its workspace."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler

from orchestrator.langgraph.checkpoint_states import Start
from orchestrator.langgraph.recording import NAMESPACE


class Noted(NamedTuple):
    """A state, and the number of the task that left it, in the order in which they ended."""

    number: int
    state: str


class _Place(NamedTuple):
    """A task of a graph: the graph's namespace, the superstep, and LangGraph's id of the task."""

    graph: str
    superstep: int
    task: str


class StateTracker(BaseCallbackHandler):
    """Notes the workspace's state when each task of a graph, or of a subgraph, ends.

    A saver is called in the background, when the next superstep may have changed files already. So
    it takes the state that was noted when the tasks of its superstep ended. Called from any thread.

    Args:
        state: gives the id of the workspace's present state.
    """

    run_inline = True
    raise_error = True

    def __init__(self, state: Callable[[], str], start: Start) -> None:
        self._state = state
        self._numbers = count(start.number + 1)
        self._first = Noted(start.number, state())
        self._places: dict[UUID, _Place] = {}
        self._by_superstep: dict[tuple[str, int], Noted] = {}
        self._by_task: dict[str, Noted] = {}

    def on_chain_start(
        self,
        serialized: dict[str, Any],
        inputs: Any,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        **_: Any,
    ) -> None:
        """A task begins, or something in it: so far the superstep before it has led."""
        namespace = str((metadata or {}).get(NAMESPACE, ""))
        if not namespace:
            return
        superstep = int((metadata or {}).get("langgraph_step", 0))
        place = _Place(namespace.rpartition("|")[0], superstep, namespace.rpartition(":")[2])
        self._places[run_id] = place
        if (place.graph, superstep - 1) not in self._by_superstep:
            self._by_superstep[place.graph, superstep - 1] = self._now()

    def on_chain_end(self, outputs: Any, *, run_id: UUID, **_: Any) -> None:
        """A task has ended, or something in it."""
        place = self._places.pop(run_id, None)
        if place is not None:
            noted = self._now()
            self._by_superstep[place.graph, place.superstep] = noted
            self._by_task[place.task] = noted

    def on_chain_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        """A task has failed, or waits for an answer."""
        self._places.pop(run_id, None)

    def after_task(self, task: str) -> Noted:
        """The state that a task has left; the present one, if it came from LangGraph's cache."""
        return self._by_task.get(task) or self._now()

    def after_superstep(self, graph: str, superstep: int) -> Noted:
        """The state at the end of a graph's superstep, or of the last one before that has tasks."""
        noted = self._by_superstep.get((graph, superstep))
        if noted is not None:
            return noted
        known = [step for name, step in list(self._by_superstep) if name == graph]
        before = [step for step in known if step < superstep]
        if before:
            return self._by_superstep[graph, max(before)]
        return self._now() if graph else self._first

    def _now(self) -> Noted:
        return Noted(next(self._numbers), self._state())

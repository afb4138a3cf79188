"""Dependencies within a LangGraph graph: which calls each activity waited for.

A graph proceeds in supersteps: a node waits for everything that the superstep before did. Within a
node, and wherever LangGraph reports no order, times decide: a call waited for those that had ended
when it began.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.durability.identity import StepPath, branch_prefix


@dataclass(eq=False, slots=True)
class PendingCall:
    """A call that is being recorded.

    Attributes:
        nodes: the calls on which its successors depend; final once the task is done.
        task: records it; None for calls that were recorded before the graph began.
    """

    nodes: frozenset[int]
    task: asyncio.Task[Any] | None = None


PendingCalls = tuple[PendingCall, ...]


@dataclass(eq=False, slots=True)
class Activity:
    """Something that runs in a graph: the graph itself, a node, a chain, a tool or a model call.

    Attributes:
        step_path: the path of steps that begin within it.
        namespace: LangGraph's name of the task that this is, or is part of.
        dependencies: the calls that it waited for.
        node, superstep: of a task of a graph: its node, and its superstep.
        call: the recorded call that it is, if it is one.
        outcome: resolved when it ends, for the task that records it.
        error: with which it ended.
    """

    step_path: StepPath
    namespace: str = ""
    parent: Activity | None = None
    dependencies: PendingCalls = ()
    node: str = ""
    superstep: int | None = None
    call: PendingCall | None = None
    outcome: asyncio.Future[Any] | None = None
    error: BaseException | None = None
    _last_ended: PendingCalls = ()  # in the current superstep, if this is a graph
    _current_superstep: int = -1
    _earlier: PendingCalls = ()  # the last calls of the supersteps before the current one
    _num_tasks: Counter[str] = field(default_factory=Counter)  # of the superstep, by node

    def begin_child(self, *, superstep: int | None = None, node: str = "") -> PendingCalls:
        """The calls that an activity waited for which begins within this one now.

        Args:
            superstep, node: if this is a graph and the activity is one of its tasks.
        """
        if superstep is None:
            return self._last_ended or self.dependencies
        if superstep != self._current_superstep:
            self._current_superstep = superstep
            self._earlier, self._last_ended = self._last_ended or self._earlier, ()
            self._num_tasks.clear()
        self._num_tasks[node] += 1
        return self._earlier or self.dependencies

    def child_ended(self, child: Activity) -> None:
        """An activity that began within this one has ended."""
        kept = self._last_ended
        if child.superstep is None:
            kept = tuple(call for call in kept if call not in child.dependencies)
        self._last_ended = _distinct((*kept, *child.last_calls()))

    def last_calls(self) -> PendingCalls:
        """The calls that whatever follows this activity waits for."""
        within = self._last_ended or self._earlier
        if self.call is not None:
            return _distinct((self.call, *within))
        return within or self.dependencies

    def num_parallel_tasks(self) -> int:
        """Tasks of the same node that have begun in the superstep around; 1 outside a superstep."""
        task: Activity | None = self
        while task is not None and task.superstep is None:
            task = task.parent
        if task is None or task.parent is None:
            return 1
        return max(task.parent._num_tasks[task.node], 1)  # noqa: SLF001 - of its own class

    def is_own_task(self, namespace: str) -> bool:
        """Whether a namespace is that of a task of this graph, not of a graph around or within."""
        above = namespace.rpartition("|")[0]
        return _unnumbered(above) == _unnumbered(self.namespace)


def _distinct(calls: Iterable[PendingCall]) -> PendingCalls:
    return tuple(dict.fromkeys(calls))


def _unnumbered(namespace: str) -> str:
    """Without the numbers by which LangGraph distinguishes the subgraphs of one node."""
    return "|".join(part for part in namespace.split("|") if not part.isdigit())


class FanOuts:
    """Step paths of tasks started by `Send`: branches by index, like those of a gather."""

    def __init__(self) -> None:
        self._paths: dict[tuple[Activity, int, int], StepPath] = {}
        self._numbers: dict[tuple[Activity, int], int] = {}
        self._counts: Counter[str] = Counter()

    def step_path(self, graph: Activity, superstep: int, index: int) -> StepPath:
        """The branch of the task that Send number `index` of a superstep starts."""
        outer = graph.step_path
        step = (graph, superstep)
        if step not in self._numbers:
            self._counts[outer.key] += 1
            self._numbers[step] = self._counts[outer.key]
        if (*step, index) not in self._paths:
            prefix = branch_prefix(self._numbers[step])
            branch = outer.key.removeprefix(f"{outer.text}/") if outer.text else outer.key
            self._paths[*step, index] = StepPath(
                outer.text, outer.name, f"{branch}[{prefix}{index}]"
            )
        return self._paths[*step, index]


class ReservedPath(StepPath):
    """A path from which one step begins; that step's own path was determined in advance."""

    def __init__(self, outer: StepPath, reserved: StepPath) -> None:
        super().__init__(outer.text, outer.name)
        self._reserved = reserved

    def enter(self, name: str) -> StepPath:
        """The step's reserved path."""
        return self._reserved

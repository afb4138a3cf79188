"""Where in a foreign graph something happens: what it waited for, and what waits for it.

A graph of LangGraph proceeds in supersteps: a node waits for all that the step before did. Within
a node, and wherever else nobody tells, interval order decides: a call waited for those that had
ended when it began.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.durability.identity import StepPath


@dataclass(eq=False, slots=True)
class Span:
    """A call that is being recorded.

    Attributes:
        nodes: the calls that what comes after it waited for; known once the task is done.
        task: records it; None for calls that were recorded before the graph began.
    """

    nodes: frozenset[int]
    task: asyncio.Task[Any] | None = None


Spans = tuple[Span, ...]


@dataclass(eq=False, slots=True)
class GraphPlace:
    """Something under way in a graph: the graph itself, a node, a chain, a tool, a model's call.

    Attributes:
        scope: what steps that begin here are called after.
        namespace: LangGraph's name for the task that this is, or is part of.
        entry: what it waited for.
        node, superstep: of a task of a graph: which node it is, and in which superstep.
        span: the call that it is.
        outcome: resolved when it ends, for what records it.
        error: what ended it.
    """

    step_path: StepPath
    namespace: str = ""
    parent: GraphPlace | None = None
    entry: Spans = ()
    node: str = ""
    superstep: int | None = None
    span: Span | None = None
    outcome: asyncio.Future[Any] | None = None
    error: BaseException | None = None
    _ended: Spans = ()
    _current: int = -1  # the superstep that it is at, as a graph
    _before: Spans = ()  # the ends of the supersteps before that one
    _tasks: Counter[str] = field(default_factory=Counter)  # begun in it, by node

    def begun(self, *, superstep: int | None = None, node: str = "") -> Spans:
        """What waits to begin here waits for these.

        Args:
            superstep, node: of a task of the graph that this is.
        """
        if superstep is None:
            return self._ended or self.entry
        if superstep != self._current:
            self._current, self._before, self._ended = superstep, self._ended or self._before, ()
            self._tasks.clear()
        self._tasks[node] += 1
        return self._before or self.entry

    def ended(self, child: GraphPlace) -> None:
        """Something that began here has ended."""
        kept = self._ended
        if child.superstep is None:
            kept = tuple(span for span in kept if span not in child.entry)
        self._ended = _distinct((*kept, *child.exits()))

    def exits(self) -> Spans:
        """What comes after it waits for these."""
        within = self._ended or self._before
        if self.span is not None:
            return _distinct((self.span, *within))
        return within or self.entry

    def side_by_side(self) -> int:
        """How many tasks of its node its superstep has begun, if it lies in one; else 1."""
        task: GraphPlace | None = self
        while task is not None and task.superstep is None:
            task = task.parent
        if task is None or task.parent is None:
            return 1
        return max(task.parent._tasks[task.node], 1)  # noqa: SLF001 - of its own class

    def is_task(self, namespace: str) -> bool:
        """Whether a namespace is that of a task of this graph, not of one further up or down."""
        above = namespace.rpartition("|")[0]
        return _unnumbered(above) == _unnumbered(self.namespace)


def _distinct(spans: Iterable[Span]) -> Spans:
    return tuple(dict.fromkeys(spans))


def _unnumbered(namespace: str) -> str:
    """Without the numbers by which LangGraph tells the subgraphs of one node from another."""
    return "|".join(part for part in namespace.split("|") if not part.isdigit())


class FanOuts:
    """The scopes of tasks that were sent to, told apart by their place like gather's branches."""

    def __init__(self) -> None:
        self._scopes: dict[tuple[GraphPlace, int, int], StepPath] = {}
        self._numbers: dict[tuple[GraphPlace, int], int] = {}
        self._counts: Counter[str] = Counter()

    def step_path(self, graph: GraphPlace, superstep: int, index: int) -> StepPath:
        """The scope from which the task begins that is sent to at this place of a superstep."""
        outer = graph.step_path
        step = (graph, superstep)
        if step not in self._numbers:
            self._counts[outer.key] += 1
            self._numbers[step] = self._counts[outer.key]
        if (*step, index) not in self._scopes:
            number = self._numbers[step]
            again = f"{number}:" if number > 1 else ""
            branch = outer.key.removeprefix(f"{outer.text}/") if outer.text else outer.key
            self._scopes[*step, index] = StepPath(
                outer.text, outer.name, f"{branch}[{again}{index}]"
            )
        return self._scopes[*step, index]


class Reserved(StepPath):
    """A scope from which one step begins whose own scope is known before it does."""

    def __init__(self, outer: StepPath, own: StepPath) -> None:
        super().__init__(outer.text, outer.name)
        self._own = own

    def enter(self, name: str) -> StepPath:
        """The step's own scope."""
        return self._own

"""Causal dependencies between calls: which calls had to end before a call could begin.

In the runtime's own tasks (steps, gather, await) the causal frontier is exact: the last calls on
each path to the current code. For calls made in tasks or threads that the runtime did not start
only times are known: a later call depends on those of them that ended before it began.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextvars import ContextVar
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from patterns.stages import next_stage


@dataclass(frozen=True, slots=True)
class Frontier:
    """The last calls on the paths to the current code, and the task for which that is exact."""

    nodes: frozenset[int] = frozenset()
    task: asyncio.Task[Any] | None = None


class CallNode(NamedTuple):
    """A call's node in its run's graph, its stage, and the nodes that it depends on."""

    node: int
    stage: int
    parents: tuple[int, ...]


_frontier: ContextVar[Frontier] = ContextVar("orchestrate_frontier", default=Frontier())  # noqa: B039 - frozen


class CausalLog:
    """The calls of one run by their numbers (nodes), in the order in which they began.

    A resumed run may lack numbers: of calls with a start that was not recorded before the process
    died, or could not be. New calls get numbers above all known ones.

    Attributes:
        parents: for each call the calls that it directly depends on, ascending; none of them
            depends on another of them.
        stages: for each call the number of calls on the longest path to it.
    """

    def __init__(self) -> None:
        self.parents: dict[int, tuple[int, ...]] = {}
        self.stages: dict[int, int] = {}
        self._ancestors: dict[int, int] = {}  # for each call a bit set: bit n: depends on call n
        self._next_node = 0
        self._foreign: frozenset[int] = frozenset()  # last calls of tasks that we did not start

    def begin(self) -> CallNode:
        """Add a call that begins here and now."""
        return self.add(self._next_node, self._last_of(_frontier.get().nodes | self._foreign))

    def stage_here(self) -> int:
        """The stage that a call would have which begins here and now."""
        return next_stage(self.stages[node] for node in _frontier.get().nodes | self._foreign)

    def add(self, node: int, parents: frozenset[int]) -> CallNode:
        """Add a call with this number that depends on these, all of which are in the log."""
        assert node not in self.parents, "each call has a number of its own"
        self._next_node = max(self._next_node, node + 1)
        self.parents[node] = tuple(sorted(parents))
        self.stages[node] = next_stage(self.stages[parent] for parent in parents)
        self._ancestors[node] = _bits(parents) | self._ancestors_of(parents)
        return CallNode(node, self.stages[node], self.parents[node])

    def end(self, node: int) -> None:
        """A call has ended; the code after it depends on it."""
        self._arrive(frozenset([node]))

    def join(self, branches: Collection[frozenset[int]]) -> None:
        """Branches that began here have ended; the code after them depends on all their calls."""
        self._arrive(self._last_of(_frontier.get().nodes.union(*branches)))

    def _arrive(self, nodes: frozenset[int]) -> None:
        before = _frontier.get()
        _frontier.set(Frontier(nodes, before.task))
        if before.task is not asyncio.current_task():
            self._foreign = self._last_of(self._foreign | (nodes - before.nodes))

    def _last_of(self, nodes: frozenset[int]) -> frozenset[int]:
        """The calls without those on which another of them depends."""
        ancestors = self._ancestors_of(nodes)
        return frozenset(node for node in nodes if not ancestors >> node & 1)

    def _ancestors_of(self, nodes: frozenset[int]) -> int:
        return reduce(or_, (self._ancestors[node] for node in nodes), 0)


def _bits(nodes: frozenset[int]) -> int:
    return sum(1 << node for node in nodes)


def own_task(nodes: frozenset[int] = frozenset()) -> None:
    """Declare that the runtime started this task, after these calls."""
    _frontier.set(Frontier(nodes, asyncio.current_task()))


def stand_in_for(waiting: asyncio.Task[Any] | None) -> None:
    """Declare that this task goes on for the one that started it and waits for it."""
    before = _frontier.get()
    if before.task is waiting:
        _frontier.set(Frontier(before.nodes, asyncio.current_task()))


def frontier() -> frozenset[int]:
    """The last calls on the paths to the current code."""
    return _frontier.get().nodes

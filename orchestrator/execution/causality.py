"""Which call had to end before which could begin.

Steps, gather and await carry an exact causal frontier: the calls that ended last on the way to
here. Calls made in tasks or threads that the runtime did not start are known by their times
only: a later call depends on those of them that ended before it began.
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
    """The calls that ended last on the way to here, and the task for which that is exact."""

    nodes: frozenset[int] = frozenset()
    task: asyncio.Task[Any] | None = None


class Begun(NamedTuple):
    """A call's place in its run."""

    node: int
    stage: int
    parents: tuple[int, ...]


_frontier: ContextVar[Frontier] = ContextVar("orchestrate_frontier", default=Frontier())  # noqa: B039 - frozen


class CausalLog:
    """The calls of one run, in the order in which they began.

    Attributes:
        parents: for each call the last calls that it waited for, ascending; none of them waited
            for another of them.
        stages: for each call the number of calls on the longest path to it.
    """

    def __init__(self) -> None:
        self.parents: list[tuple[int, ...]] = []
        self.stages: list[int] = []
        self._ancestors: list[int] = []  # for each call, bit n: it waited for call n
        self._foreign: frozenset[int] = frozenset()  # the last calls of foreign tasks to end

    def begin(self) -> Begun:
        """A call begins here and now."""
        return self.append(self._last_of(_frontier.get().nodes | self._foreign))

    def append(self, parents: frozenset[int]) -> Begun:
        """A call that waited for these, each of which is in the log."""
        node = len(self.parents)
        self.parents.append(tuple(sorted(parents)))
        self.stages.append(next_stage(self.stages[parent] for parent in parents))
        self._ancestors.append(_bits(parents) | self._ancestors_of(parents))
        return Begun(node, self.stages[node], self.parents[node])

    def end(self, node: int) -> None:
        """The call has ended, and what follows here depends on it."""
        self._arrive(frozenset([node]))

    def join(self, branches: Collection[frozenset[int]]) -> None:
        """What follows here depends on the ends of all these branches, which began here."""
        self._arrive(self._last_of(_frontier.get().nodes.union(*branches)))

    def _arrive(self, nodes: frozenset[int]) -> None:
        before = _frontier.get()
        _frontier.set(Frontier(nodes, before.task))
        if before.task is not asyncio.current_task():
            self._foreign = self._last_of(self._foreign | (nodes - before.nodes))

    def _last_of(self, nodes: frozenset[int]) -> frozenset[int]:
        """The calls less those that another of them waited for."""
        waited_for = self._ancestors_of(nodes)
        return frozenset(node for node in nodes if not waited_for >> node & 1)

    def _ancestors_of(self, nodes: frozenset[int]) -> int:
        return reduce(or_, (self._ancestors[node] for node in nodes), 0)


def _bits(nodes: frozenset[int]) -> int:
    return sum(1 << node for node in nodes)


def own_task(nodes: frozenset[int] = frozenset()) -> None:
    """Say that this task is the runtime's own, and what happened before it."""
    _frontier.set(Frontier(nodes, asyncio.current_task()))


def frontier() -> frozenset[int]:
    """The calls that ended last on the way to here."""
    return _frontier.get().nodes

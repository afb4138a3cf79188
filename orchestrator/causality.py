"""Which call had to end before which could begin.

Steps, gather and await carry an exact causal frontier: the calls that ended last on the way to
here. Calls made in tasks or threads that the runtime did not start are known by their times
only: a later call depends on those of them that ended before it began.
"""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, NamedTuple

from patterns.stages import next_stage

Task = asyncio.Task[Any]


@dataclass(frozen=True, slots=True)
class Frontier:
    """The calls that ended last on the way to here, and the task for which that is exact."""

    nodes: frozenset[int] = frozenset()
    task: Task | None = None


class Interval(NamedTuple):
    """When a call of a foreign task ran, in seconds on the run's clock."""

    node: int
    began_s: float
    ended_s: float


class Begun(NamedTuple):
    """A call's place in its run."""

    node: int
    stage: int
    parents: tuple[int, ...]


_frontier: ContextVar[Frontier] = ContextVar("orchestrate_frontier", default=Frontier())  # noqa: B039 - frozen


class CausalLog:
    """The calls of one run, in the order in which they began."""

    def __init__(self) -> None:
        self.parents: list[tuple[int, ...]] = []
        self.stages: list[int] = []
        self._began_s: list[float] = []
        self._foreign: list[Interval] = []

    def begin(self, now_s: float) -> Begun:
        """A call begins here and now."""
        parents = _frontier.get().nodes | self._ended_before(now_s)
        node = len(self.parents)
        self.parents.append(tuple(sorted(parents)))
        self.stages.append(next_stage(self.stages[parent] for parent in parents))
        self._began_s.append(now_s)
        return Begun(node, self.stages[node], self.parents[node])

    def end(self, node: int, now_s: float) -> None:
        """The call has ended, and what follows here depends on it."""
        frontier = _frontier.get()
        _frontier.set(Frontier(frozenset([node]), frontier.task))
        if frontier.task is not _current_task():
            self._foreign.append(Interval(node, self._began_s[node], now_s))

    def _ended_before(self, now_s: float) -> frozenset[int]:
        """Foreign calls that ended by now, less those that a later one of them waited for."""
        ended = [call for call in self._foreign if call.ended_s <= now_s]
        newest_begin_s = max((call.began_s for call in ended), default=0.0)
        return frozenset(call.node for call in ended if call.ended_s > newest_begin_s)


def own_task(nodes: frozenset[int] = frozenset()) -> None:
    """Say that this task is the runtime's own, and what happened before it."""
    _frontier.set(Frontier(nodes, _current_task()))


def frontier() -> frozenset[int]:
    """The calls that ended last on the way to here."""
    return _frontier.get().nodes


def join(branches: list[frozenset[int]]) -> None:
    """What follows here depends on the ends of all these branches."""
    before = _frontier.get()
    ends = frozenset[int]().union(*branches)
    _frontier.set(Frontier(ends or before.nodes, before.task))


def _current_task() -> Task | None:
    try:
        return asyncio.current_task()
    except RuntimeError:  # a thread without an event loop
        return None

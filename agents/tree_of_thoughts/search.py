"""The search of Tree of Thoughts, apart from models and tasks: what to expand next, and the best.

The caller asks which thoughts to expand, and tells which new thoughts follow from each and
how promising they are. Equal states are one thought, reached on the way that was found first.

Source: Yao et al. (2023), Tree of Thoughts, section 3 and algorithms 1 and 2.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class Order(StrEnum):
    """Which thoughts are expanded next.

    BREADTH: of each level the best ones, the beam; the others are given up (Yao et al., 3.4 a).
    BEST: of all open thoughts the best ones, whatever their level: it can go back.
    """

    BREADTH = "breadth"
    BEST = "best"


class Status(StrEnum):
    """What a task's own check says of a state: it can be expanded, solves the task, or cannot."""

    OPEN = "open"
    SOLVED = "solved"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Continuation:
    """A word that continues a text: how much more probable it is there than without its cause.

    Attributes:
        prompt: the text, such as "Clue: a slow animal\nAnswer:".
        without: the same text without what the word should depend on.
        option: the word.
    """

    prompt: str
    without: str
    option: str


@dataclass(frozen=True, slots=True)
class Step:
    """A way from one state to the next.

    Attributes:
        move: what was done, for people.
        state: the state that it leads to; equal states have equal texts.
        status: of that state.
        continuations: what the step claims, each for the model to judge; none: the model judges
            the step as a whole.
    """

    move: str
    state: str
    status: Status = Status.OPEN
    continuations: tuple[Continuation, ...] = ()


@dataclass(slots=True)
class Thought:
    """A state in the tree.

    Attributes:
        number: from 0, in the order in which thoughts were found.
        parent: number of the thought that it follows from; None: the root.
        value: how promising it is, from 0 to 1; None: not evaluated.
        is_expanded: whether the steps from it are in the tree.
    """

    number: int
    parent: int | None
    depth: int
    step: Step
    value: float | None = None
    is_expanded: bool = False


class Search:
    """A tree that grows.

    Args:
        start: the root's state.
        beam: most thoughts that are expanded at once, at least 1.
        max_depth: thoughts at this depth are not expanded; at least 1.
    """

    def __init__(
        self, start: str, *, order: Order = Order.BEST, beam: int = 5, max_depth: int = 10
    ) -> None:
        assert beam >= 1, "a search expands at least one thought at a time"
        assert max_depth >= 1, "a search takes at least one step"
        self.thoughts: list[Thought] = []
        self.num_merged = 0
        self._solved: list[Thought] = []
        self._deepest: list[Thought] = []  # of those that are not dead
        self._open: dict[int, Thought] = {}
        self._order = order
        self._beam = beam
        self._max_depth = max_depth
        self._numbers: dict[str, int] = {}
        self._add(None, Step("", start))
        self.tell(self.thoughts[0], 1.0)

    @property
    def solution(self) -> Thought | None:
        """The best thought that solves the task, the first if equal; None without any.

        One that was not evaluated is as good as the thought that it follows from.
        """
        return min(self._solved, key=self._rank_of_solution, default=None)

    def ask(self) -> list[Thought]:
        """The thoughts to expand next, the best first; empty if the search has ended.

        All of them have been evaluated, or are the root.
        """
        if self.solution is not None:
            return []
        open_ones = list(self._open.values())
        if self._order is Order.BREADTH and open_ones:
            # Levels are expanded one after another: what is open above the last one was given up.
            deepest = max(each.depth for each in open_ones)
            expanded = max((each.depth for each in self.thoughts if each.is_expanded), default=-1)
            level = max(deepest, expanded + 1)
            open_ones = [each for each in open_ones if each.depth == level]
        return heapq.nsmallest(self._beam, open_ones, key=_rank)

    def expand(self, thought: Thought, steps: Iterable[Step]) -> list[Thought]:
        """Add the steps from a thought; returns the new thoughts, without those known already."""
        assert not thought.is_expanded, "a thought is expanded once"
        thought.is_expanded = True
        self._open.pop(thought.number, None)
        added = [self._add(thought, step) for step in steps]
        return [each for each in added if each is not None]

    def tell(self, thought: Thought, value: float) -> None:
        """Set how promising a thought is, from 0 to 1."""
        assert 0 <= value <= 1, "values are from 0 to 1"
        thought.value = value
        if self._is_open(thought):
            self._open[thought.number] = thought

    def best(self) -> Thought:
        """The solution, or the thought nearest to one: the deepest, then the best valued."""
        if self.solution is not None:
            return self.solution
        return min(self._deepest, key=_rank)

    def path_to(self, thought: Thought) -> list[Thought]:
        """The thoughts from the root to this one, both included."""
        path = [thought]
        while path[-1].parent is not None:
            path.append(self.thoughts[path[-1].parent])
        return path[::-1]

    def _add(self, parent: Thought | None, step: Step) -> Thought | None:
        if step.state in self._numbers:
            self.num_merged += 1
            return None
        number = self._numbers[step.state] = len(self.thoughts)
        depth = 0 if parent is None else parent.depth + 1
        thought = Thought(number, None if parent is None else parent.number, depth, step)
        self.thoughts.append(thought)
        if step.status is Status.SOLVED:
            self._solved.append(thought)
        if step.status is not Status.DEAD:
            if self._deepest and depth > self._deepest[0].depth:
                self._deepest.clear()
            if not self._deepest or depth == self._deepest[0].depth:
                self._deepest.append(thought)
        return thought

    def _rank_of_solution(self, thought: Thought) -> tuple[float, int]:
        judged = thought
        if thought.value is None and thought.parent is not None:
            judged = self.thoughts[thought.parent]
        return (-(judged.value or 0.0), thought.number)

    def _is_open(self, thought: Thought) -> bool:
        return (
            not thought.is_expanded
            and thought.value is not None
            and thought.step.status is Status.OPEN
            and thought.depth < self._max_depth
        )


def _rank(thought: Thought) -> tuple[float, int, int]:
    """Best first: by value, then the deeper one, then the one that was found first."""
    return (-(thought.value or 0.0), -thought.depth, thought.number)

"""A task for Tree of Thoughts: states as text, the steps between them, and a check."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from agents.tree_of_thoughts.search import Step


class Task(Protocol):
    """What the search has to know of a task. All of it is pure: the model is asked elsewhere.

    Attributes:
        name: of the task's kind, for people.
        goal: what is to be found, in a sentence; every prompt begins with it.
        start: the first state.
        start_name: what stands for it in a picture of the tree.
        max_depth: most steps to a solution.
        num_judged: continuations that the steps to a solution have in all; 0: they have none.
    """

    name: str
    goal: str
    start: str
    start_name: str
    max_depth: int
    num_judged: int

    def moves(self, state: str) -> Iterable[Step] | None:
        """All steps from a state, if they can be listed; None: the model proposes them."""
        ...

    def step(self, state: str, proposal: str) -> Step | None:
        """The step that a model's proposal means; None if it is not possible from this state.

        Called only if `moves` returns None.
        """
        ...

    def describe(self, state: str) -> str:
        """A state as the model reads it."""
        ...

    def how_to_propose(self, state: str, attempt: int) -> str:
        """What the model is told to write as a proposal. Called only if `moves` returns None.

        Args:
            attempt: from 0; how often the model was asked before and proposed nothing that fits.
        """
        ...

    def answer(self, path: Sequence[Step]) -> str:
        """The answer that a path of steps from the start leads to, for people."""
        ...

    def board(self, path: Sequence[Step]) -> tuple[str, ...]:
        """The answer as rows of equally many letters, for a picture; empty if it is no board."""
        ...

"""Which task a user's text names."""

from __future__ import annotations

from agents.tree_of_thoughts.task import Task
from agents.tree_of_thoughts.tasks.game24 import GameOf24


def task_of(puzzle: str) -> Task:
    """The task for some numbers, or in a file.

    Raises:
        ValueError: it is neither.
    """
    return GameOf24.parse(puzzle)

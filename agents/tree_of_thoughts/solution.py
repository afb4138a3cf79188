"""What a search found: the answer, and the tree, for people and programs."""

from __future__ import annotations

from dataclasses import dataclass

from agents.tree_of_thoughts.search import Search, Status
from agents.tree_of_thoughts.task import Task


@dataclass(frozen=True, slots=True)
class Node:
    """A thought of the tree.

    Attributes:
        move: what was done to reach it; of the root, the start.
        parent: number of the thought that it follows from; None: the root.
        value: how promising the model found it, from 0 to 1; None: not judged.
        status: open, solved or dead.
        is_best: whether it is on the way to the answer.
    """

    move: str
    depth: int
    parent: int | None
    value: float | None
    status: str
    is_best: bool


@dataclass(frozen=True, slots=True)
class Solution:
    """The end of a search, or what it had found at its deadline.

    Attributes:
        task: the kind of task.
        goal: what was to be found.
        answer: of the best thought, for people.
        solved: whether the task's own check says that it is solved.
        expanded, merged: thoughts that were expanded, and equal to known ones.
        tree: all thoughts, the root first.
        board: the answer as rows of letters, "." where none is; empty if the task has no board.
        ended: why the search ended without a solution; "" if it is solved.
    """

    task: str
    goal: str
    answer: str
    solved: bool
    expanded: int
    merged: int
    tree: tuple[Node, ...]
    board: tuple[str, ...] = ()
    ended: str = ""


def solution_of(task: Task, search: Search, ended: str = "") -> Solution:
    """The best thought of a search as an answer.

    Args:
        ended: why the search ended without a solution.
    """
    best = search.best()
    path = search.path_to(best)
    steps = [each.step for each in path[1:]]
    on_path = {each.number for each in path}
    return Solution(
        task=task.name,
        goal=task.goal,
        answer=task.answer(steps),
        solved=best.step.status is Status.SOLVED,
        expanded=sum(each.is_expanded for each in search.thoughts),
        merged=search.num_merged,
        tree=tuple(
            Node(
                move=each.step.move or task.start_name,
                depth=each.depth,
                parent=each.parent,
                value=each.value,
                status=str(each.step.status),
                is_best=each.number in on_path,
            )
            for each in search.thoughts
        ),
        board=task.board(steps),
        ended=ended,
    )

"""Tree of Thoughts as a flow: expand the best thoughts, let the model judge what follows, repeat.

The deadline cuts the search, not the answer: the best thought so far is handed over. Each judgement
is a step, so a resumed run goes on where it was and asks for nothing twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Annotated, Literal, TypeVar

from pydantic import Field

from agents.tree_of_thoughts.judging import Fits, propose, value, votes
from agents.tree_of_thoughts.search import Order, Search, Status, Step, Thought
from agents.tree_of_thoughts.setbacks import Setbacks
from agents.tree_of_thoughts.solution import Solution, solution_of
from agents.tree_of_thoughts.task import Task
from agents.tree_of_thoughts.tasks.table import is_file, task_in, task_of
from agents.tree_of_thoughts.tasks.task_file import read_task_file
from orchestrator import best_so_far, flow, gather, step

DEFAULT_BEAM = 5
ATTEMPTS = 3
"""Times that a model is asked for steps from a thought, if it proposes none that fits."""

SMALL = 300
"""Thoughts of a tree that is copied whenever it changes."""
GROWTH = 0.05

Judge = Literal["votes", "values"]

T = TypeVar("T")


@flow(name="tree-of-thoughts", on_deadline="best_so_far")
async def tree_of_thoughts(
    puzzle: Annotated[str, Field(pattern=r"\S")],
    *,
    beam: Annotated[int, Field(ge=1, le=50)] = DEFAULT_BEAM,
    depth: Annotated[int, Field(ge=1, le=50)] | None = None,
    order: Order = Order.BEST,
    judge: Judge = "votes",
) -> Solution:
    """Search for a solution step by step, with the model as guide.

    Args:
        puzzle: numbers for the Game of 24, such as "4 5 6 10", or the path of a task file (.toml):
            a crossword or a text.
        beam: most thoughts that are expanded at once.
        depth: most steps to a solution; the task's own number by default.
        order: breadth: level by level, only the beam of each; best: can go back.
        judge: votes: the model chooses among the steps from a thought; values: it says of each new
            thought how promising it is, in a call each. Words from the list of a crossword are
            judged by their clues.
    Raises:
        InvalidTask: the puzzle is neither.
    """
    task = task_in(await task_file(puzzle), puzzle) if is_file(puzzle) else task_of(puzzle)
    search = Search(task.start, order=order, beam=beam, max_depth=depth or task.max_depth)
    setbacks = Setbacks()
    fits = Fits(setbacks)
    best = BestSoFar(task, search, setbacks)
    best.keep()
    while thoughts := search.ask():
        steps = await gather(*(next_steps(task, thought, setbacks) for thought in thoughts))
        added = [
            new
            for thought, found in zip(thoughts, steps, strict=True)
            for new in [search.expand(thought, found)]
        ]
        best.keep()
        if task.num_judged:
            await judge_continuations(task, search, added, fits)
        elif search.solution is None:
            await gather(
                *(
                    judge_all(task, search, thought, list(filter(_is_open, new)), judge, setbacks)
                    for thought, new in zip(thoughts, added, strict=True)
                )
            )
        best.keep()
    end = "" if search.solution else setbacks.reason("no thought is left to expand")
    return solution_of(task, search, end)


class BestSoFar:
    """Keeps the best so far, with the tree, for the deadline.

    A large tree is copied only if the best thought is another one or the tree has grown by
    GROWTH, so that the copies of a long search take no time.
    """

    def __init__(self, task: Task, search: Search, setbacks: Setbacks) -> None:
        self._setbacks = setbacks
        self._task = task
        self._search = search
        self._best: int | None = None
        self._num_kept = 0

    def keep(self) -> None:
        """Keep what the search has found by now."""
        best, number = self._search.best().number, len(self._search.thoughts)
        is_small = number < SMALL
        if is_small or best != self._best or number >= self._num_kept * (1 + GROWTH):
            end = "" if self._search.solution else self._setbacks.reason("the deadline came first")
            best_so_far(solution_of(self._task, self._search, end))
            self._best, self._num_kept = best, number


@step
def task_file(path: str) -> str:
    """A task file's text. It is recorded, so that a resumed run needs the file no more."""
    return read_task_file(path)


async def next_steps(task: Task, thought: Thought, setbacks: Setbacks) -> list[Step]:
    """The steps from a thought: all of them, or those that the model proposes and that fit.

    A model that proposes nothing that fits is asked again, at most ATTEMPTS times in all.
    """
    state = thought.step.state
    listed = task.moves(state)
    if listed is not None:
        return [each async for each in letting_others_run(listed)]
    for attempt in range(ATTEMPTS):
        how = task.how_to_propose(state, attempt)
        proposals = await setbacks.none_if_failed(
            propose(task.goal, task.describe(state), how, attempt)
        )
        if proposals is None:
            return []
        found = letting_others_run(task.step(state, proposal) for proposal in proposals)
        if steps := [each async for each in found if each is not None]:
            return steps
    setbacks.num_fruitless += 1
    return []


async def letting_others_run(each_of: Iterable[T]) -> AsyncIterator[T]:
    """Things that take time to make, one by one; other work and the deadline come between them."""
    for each in each_of:
        yield each
        await asyncio.sleep(0)


async def judge_continuations(
    task: Task, search: Search, added: Sequence[Sequence[Thought]], fits: Fits
) -> None:
    """Set the values of new thoughts by how well what their steps claim fits.

    A value is the mean fit of all that a solution claims, where 0.5 counts for what is open. A
    thought of which a call failed has no value, so it is not expanded.
    """
    new = [each for thoughts in added for each in thoughts]
    await fits.ask(one for each in new for one in each.step.continuations)
    for each in new:
        if not all(map(fits.knows, each.step.continuations)):
            continue
        parent = None if each.parent is None else search.thoughts[each.parent]
        before = 0.5 if parent is None or not parent.depth else parent.value or 0.0
        gain = sum(fits.of(one) - 0.5 for one in each.step.continuations)
        search.tell(each, min(max(before + gain / task.num_judged, 0.0), 1.0))


async def judge_all(
    task: Task,
    search: Search,
    thought: Thought,
    new: Sequence[Thought],
    judge: Judge,
    setbacks: Setbacks,
) -> None:
    """Set the values of the new thoughts that follow from one; none if the call fails."""
    if judge == "values":
        described = [task.describe(each.step.state) for each in new]
        values: Sequence[float | None] = await gather(
            *(setbacks.none_if_failed(value(task.goal, each)) for each in described)
        )
    elif len(new) == 1:
        values = [1.0]
    else:
        moves = [each.step.move for each in new]
        voted = votes(task.goal, task.describe(thought.step.state), moves)
        values = await setbacks.none_if_failed(voted) or [None] * len(new)
    for each, promise in zip(new, values, strict=True):
        if promise is not None:
            search.tell(each, promise)


def _is_open(thought: Thought) -> bool:
    return thought.step.status is Status.OPEN

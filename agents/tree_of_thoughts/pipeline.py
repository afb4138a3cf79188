"""Tree of Thoughts as a flow: expand the best thoughts, let the model judge what follows, repeat.

The deadline cuts the search, not the answer: the best thought so far is handed over. Each judgement
is a step, so a resumed run goes on where it was and asks for nothing twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field

from agents.tree_of_thoughts import prompts
from agents.tree_of_thoughts.search import Order, Search, Status, Step, Thought
from agents.tree_of_thoughts.solution import Solution, solution_of
from agents.tree_of_thoughts.task import Task
from agents.tree_of_thoughts.tasks.table import task_of
from orchestrator import best_so_far, choose, flow, gather, llm, step
from serving.generation import MAX_CHOICES

DEFAULT_BEAM = 5
PROPOSALS = 3
"""Steps that the model is asked for from one state, if the task cannot list them."""

PROPOSAL_TOKENS = 60


@flow(name="tree-of-thoughts", on_deadline="best_so_far")
async def tree_of_thoughts(
    puzzle: Annotated[str, Field(pattern=r"\S")],
    *,
    beam: Annotated[int, Field(ge=1, le=50)] = DEFAULT_BEAM,
    depth: Annotated[int, Field(ge=1, le=50)] | None = None,
    order: Order = Order.BEST,
    judge: Literal["votes", "values"] = "votes",
) -> Solution:
    """Search for a solution step by step, with the model as guide.

    Args:
        puzzle: numbers for the Game of 24, such as "4 5 6 10", or the path of a task file (.toml).
        beam: most thoughts that are expanded at once.
        depth: most steps to a solution; the task's own number by default.
        order: breadth: level by level, only the beam of each; best: can go back.
        judge: votes: the model chooses among the steps from a thought; values: it says of each new
            thought how promising it is, in a call each.
    """
    task = task_of(puzzle)
    search = Search(task.start, order=order, beam=beam, max_depth=depth or task.max_depth)
    best_so_far(solution_of(task, search))
    while thoughts := search.ask():
        steps = await gather(*(next_steps(task, thought) for thought in thoughts))
        added = [
            new
            for thought, found in zip(thoughts, steps, strict=True)
            for new in [search.expand(thought, found)]
        ]
        best_so_far(solution_of(task, search))
        if search.solution is not None:
            break
        await gather(
            *(
                judge_all(task, search, thought, [each for each in new if _is_open(each)], judge)
                for thought, new in zip(thoughts, added, strict=True)
            )
        )
        best_so_far(solution_of(task, search))
    return solution_of(task, search)


async def next_steps(task: Task, thought: Thought) -> list[Step]:
    """The steps from a thought: all of them, or those that the model proposes and that fit."""
    state = thought.step.state
    listed = task.moves(state)
    if listed is not None:
        return list(listed)
    proposals = await propose(task.goal, task.describe(state))
    found = [task.step(state, proposal) for proposal in proposals]
    return [each for each in found if each is not None]


async def judge_all(
    task: Task,
    search: Search,
    thought: Thought,
    new: Sequence[Thought],
    judge: Literal["votes", "values"],
) -> None:
    """Set the values of the new thoughts that follow from one."""
    if judge == "values":
        described = [task.describe(each.step.state) for each in new]
        values: Sequence[float] = await gather(*(value(task.goal, each) for each in described))
    elif len(new) == 1:
        values = [1.0]
    else:
        moves = [each.step.move for each in new]
        values = await votes(task.goal, task.describe(thought.step.state), moves)
    for each, promise in zip(new, values, strict=True):
        search.tell(each, promise)


@step
async def propose(goal: str, described: str) -> list[str]:
    """The model's next steps from a state, each once."""
    answers = await gather(
        *(
            llm(
                prompts.propose_prompt(goal, described),
                system=prompts.SYSTEM,
                max_tokens=PROPOSAL_TOKENS,
                temperature=0.0 if number == 0 else 1.0,
                seed=number,
                stop=["\n"],
            )
            for number in range(PROPOSALS)
        )
    )
    return list(dict.fromkeys(answer.strip() for answer in answers if answer.strip()))


@step
async def votes(goal: str, described: str, moves: list[str]) -> list[float]:
    """How likely the model is to choose each of some moves; they sum to 1.

    More moves than a call takes are put to it in groups; each counts in its group.
    """
    groups = [moves[at : at + MAX_CHOICES] for at in range(0, len(moves), MAX_CHOICES)]
    prompt = prompts.vote_prompt(goal, described)
    choices = await gather(*(choose(prompt, group, system=prompts.SYSTEM) for group in groups))
    return [
        probability * len(group) / len(moves)
        for group, choice in zip(groups, choices, strict=True)
        for probability in choice.probabilities
    ]


@step
async def value(goal: str, described: str) -> float:
    """How promising the model finds a state, from 0 to 1."""
    choice = await choose(
        prompts.value_prompt(goal, described), list(prompts.VALUES), system=prompts.SYSTEM
    )
    pairs = zip(choice.probabilities, prompts.VALUES.values(), strict=True)
    return min(sum(probability * promise for probability, promise in pairs), 1.0)


def _is_open(thought: Thought) -> bool:
    return thought.step.status is Status.OPEN

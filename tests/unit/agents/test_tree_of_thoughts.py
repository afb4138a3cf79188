"""Tree of Thoughts as a flow: it solves, is cut off by its deadline, and goes on when resumed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agents.tree_of_thoughts.command import pictures, to_text
from agents.tree_of_thoughts.errors import InvalidTask
from agents.tree_of_thoughts.judging import PROPOSALS
from agents.tree_of_thoughts.pipeline import ATTEMPTS, Judge, next_steps, tree_of_thoughts
from agents.tree_of_thoughts.search import Order, Search
from agents.tree_of_thoughts.setbacks import Setbacks
from agents.tree_of_thoughts.solution import Node
from agents.tree_of_thoughts.tasks.table import task_in
from agents.tree_of_thoughts.tree_svg import tree_svg
from agents.tree_of_thoughts.tree_text import tree_lines
from agents.tree_of_thoughts.tree_view import MAX_SHOWN
from orchestrator.testing import ScriptedEngine
from serving.errors import EngineDied, InvalidRequest, PromptTooLong, RequestFailed
from serving.generation import Chunk, GenerationRequest
from tests.unit.agents.tree_of_thoughts_samples import (
    ANSWERS,
    CROSSWORD,
    TEXT,
    knowing,
    settled,
    task_path,
)
from tests.unit.orchestrator.orchestrator_samples import NEVER_S, scripted_runtime
from tests.unit.orchestrator.run_samples import ID


def last(request: GenerationRequest) -> str:
    """A model without judgement: it prefers the last choice."""
    return request.choices[-1]


@pytest.mark.parametrize("judge", ["votes", "values"])
async def test_a_puzzle_is_solved_whatever_the_model_prefers(tmp_path: Path, judge: str) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(last)) as runtime:
        result = await runtime.run(tree_of_thoughts, "1 5 5 5", judge=judge)  # type: ignore[arg-type]
    solution = result.value
    assert solution.solved
    assert solution.answer.splitlines()[-1].endswith("= 24")
    assert solution.tree[0].move == "1 5 5 5"
    assert sum(node.is_best for node in solution.tree) == 4


async def test_breadth_with_a_beam_of_one_is_greedy_and_may_fail(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(last)) as runtime:
        greedy = await runtime.run(tree_of_thoughts, "3 3 8 8", beam=1, order=Order.BREADTH)
    assert not greedy.value.solved
    assert greedy.value.expanded == 3


async def test_the_deadline_hands_over_the_best_so_far(tmp_path: Path) -> None:
    engine = ScriptedEngine(last, token_s=0.2)
    async with scripted_runtime(tmp_path, engine) as runtime:
        result = await runtime.run(tree_of_thoughts.options(deadline="0.5s"), "3 3 8 8", beam=1)
    assert not result.value.solved
    assert 1 <= result.value.expanded < len(result.value.tree)
    assert "not solved" in to_text(result, engine.info)


async def test_a_resumed_search_goes_on_where_it_was_and_judges_nothing_twice(
    tmp_path: Path,
) -> None:
    asked: Counter[str] = Counter()
    num_answers = 0

    def dying(request: GenerationRequest) -> str:
        nonlocal num_answers
        num_answers += 1
        if num_answers == 8:
            raise EngineDied("killed")
        asked[str(request.prompt)] += 1
        return last(request)

    once = tree_of_thoughts.options(run_id=ID)
    async with scripted_runtime(tmp_path, ScriptedEngine(dying)) as runtime:
        with pytest.raises(EngineDied):
            await runtime.run(once, "3 3 8 8", beam=2)
        result = await runtime.run(once, "3 3 8 8", beam=2)
    assert result.value.solved
    assert max(asked.values()) == 1


async def test_a_puzzle_that_is_none_is_refused(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(last)) as runtime:
        for puzzle in ("twenty-four", str(tmp_path / "missing.toml")):
            with pytest.raises(InvalidTask, match="is no task"):
                await runtime.run(tree_of_thoughts, puzzle)


async def test_a_crossword_is_filled_by_a_model_that_knows_the_answers(tmp_path: Path) -> None:
    path = task_path(tmp_path, CROSSWORD)
    engine = ScriptedEngine(knowing)
    async with scripted_runtime(tmp_path, engine) as runtime:
        solution = (await runtime.run(tree_of_thoughts, str(path))).value
    assert solution.solved
    assert solution.board == ANSWERS[:5]
    asked = [(request.prompt, word) for request in engine.requests for word in request.choices]
    assert len(set(asked)) == len(asked), "each word is asked for once with each clue"


async def test_a_crossword_without_words_is_filled_with_the_models_own(tmp_path: Path) -> None:
    path = task_path(tmp_path, CROSSWORD.partition("words =")[0])
    slots = [f"{at % 5 + 1} {'across' if at < 5 else 'down'}" for at in range(10)]

    def propose(request: GenerationRequest) -> str:
        if request.choices:
            return request.choices[0]
        described = str(request.prompt)
        open_ones = [at for at, slot in enumerate(slots) if f"{slot} (" in described]
        at = open_ones[(request.seed or 0) % len(open_ones)]
        return f"{slots[at]}: {ANSWERS[at].upper()}"

    async with scripted_runtime(tmp_path, ScriptedEngine(propose)) as runtime:
        solution = (await runtime.run(tree_of_thoughts, str(path))).value
    assert solution.solved
    assert solution.board == ANSWERS[:5]


async def test_a_model_is_asked_again_if_nothing_fits_and_the_solution_says_so(
    tmp_path: Path,
) -> None:
    path = task_path(tmp_path, CROSSWORD.partition("words =")[0])
    engine = ScriptedEngine(lambda request: "I do not know.")
    async with scripted_runtime(tmp_path, engine) as runtime:
        result = await runtime.run(tree_of_thoughts, str(path))
    seeds = [request.seed for request in engine.requests]
    assert sorted(seed for seed in seeds if seed is not None) == list(range(PROPOSALS * ATTEMPTS))
    assert len({str(request.prompt) for request in engine.requests}) == ATTEMPTS
    assert "from 1 thought the model proposed nothing that fits" in result.value.ended
    assert result.value.ended in to_text(result, engine.info)


async def test_a_proposal_of_a_later_attempt_is_taken(tmp_path: Path) -> None:
    path = task_path(tmp_path, CROSSWORD.partition("words =")[0])

    def propose(request: GenerationRequest) -> str:
        asked = str(request.prompt)
        named = [at for at in range(5) if f"for {at + 1} across" in asked]
        return f"{named[0] + 1} across: {ANSWERS[named[0]]}" if named else "Hm."

    async with scripted_runtime(tmp_path, ScriptedEngine(propose)) as runtime:
        solution = (await runtime.run(tree_of_thoughts, str(path))).value
    assert solution.board == ANSWERS[:5]
    assert (solution.solved, solution.ended) == (True, "")


@pytest.mark.parametrize("judge", ["votes", "values"])
@pytest.mark.parametrize("text", [CROSSWORD, TEXT, CROSSWORD.partition("words =")[0], "3 3 8 8"])
async def test_a_search_whose_calls_all_fail_hands_over_its_start_and_says_why(
    tmp_path: Path, text: str, judge: Judge
) -> None:
    def refuse(request: GenerationRequest) -> str:
        raise PromptTooLong(request.request_id, 9000, 8192)

    puzzle = str(task_path(tmp_path, text)) if "=" in text else text
    async with scripted_runtime(tmp_path, ScriptedEngine(refuse)) as runtime:
        solution = (await runtime.run(tree_of_thoughts, puzzle, judge=judge)).value
    assert not solution.solved
    assert solution.expanded == 1
    assert "9000 prompt tokens" in solution.ended


@pytest.mark.parametrize("judge", ["votes", "values"])
@pytest.mark.parametrize("puzzle", ["1 5 5 5", CROSSWORD])
async def test_a_call_that_fails_costs_its_thought_and_not_the_search(
    tmp_path: Path, puzzle: str, judge: Judge
) -> None:
    num_asked = 0

    def failing(request: GenerationRequest) -> str:
        nonlocal num_asked
        num_asked += 1
        if num_asked % 7 == 5:
            raise RequestFailed(request.request_id, "out of luck")
        return knowing(request) if isinstance(request.prompt, str) else settled(request)

    given = str(task_path(tmp_path, puzzle)) if "=" in puzzle else puzzle
    async with scripted_runtime(tmp_path, ScriptedEngine(failing)) as runtime:
        solution = (await runtime.run(tree_of_thoughts, given, judge=judge)).value
    assert solution.expanded > 1
    assert solution.solved or "out of luck" in solution.ended


@pytest.mark.parametrize("text", [CROSSWORD, TEXT], ids=["crossword", "text"])
async def test_a_task_file_runs_to_its_deadline_and_hands_over_the_best_so_far(
    tmp_path: Path, text: str
) -> None:
    class Stalling(ScriptedEngine):
        """Answers a few requests, and no more."""

        async def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
            if len(self.requests) >= 7:
                await asyncio.sleep(NEVER_S)
            async for chunk in super().stream(request):
                yield chunk

    path = task_path(tmp_path, text)
    engine = Stalling(settled)
    async with scripted_runtime(tmp_path, engine) as runtime:
        flow = tree_of_thoughts.options(deadline="3s")
        result = await runtime.run(flow, str(path), beam=1)
    assert not result.value.solved
    assert result.value.expanded >= 1
    document = to_text(result, engine.info)
    assert "not solved: the best so far" in document
    assert "No solution was found: the deadline came first" in document
    assert result.value.answer in document
    assert ("-board.svg" in pictures(result.value)) == (text == CROSSWORD)


async def test_other_work_goes_on_between_the_steps_from_a_thought() -> None:
    num_turns = 0

    async def work() -> None:
        nonlocal num_turns
        while True:
            num_turns += 1
            await asyncio.sleep(0)

    task = task_in(CROSSWORD, "crossword.toml")
    other = asyncio.create_task(work())
    steps = await next_steps(task, Search(task.start).thoughts[0], Setbacks())
    other.cancel()
    assert num_turns >= len(steps) >= 2


async def test_words_that_begin_with_the_same_token_are_asked_for_apart(tmp_path: Path) -> None:
    class Halving(ScriptedEngine):
        """Refuses choices of which two begin with the same two letters."""

        async def stream(self, request: GenerationRequest) -> AsyncIterator[Chunk]:
            starts = [choice[:3] for choice in request.choices]
            if len(set(starts)) < len(starts):
                raise InvalidRequest(request.request_id, "the same token")
            async for chunk in super().stream(request):
                yield chunk

    path = task_path(tmp_path, CROSSWORD)
    async with scripted_runtime(tmp_path, Halving(knowing)) as runtime:
        solution = (await runtime.run(tree_of_thoughts, str(path))).value
    assert solution.board == ANSWERS[:5]


async def test_the_tree_is_shown_in_part_and_no_line_is_wider_than_a_terminal(
    tmp_path: Path,
) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(last)) as runtime:
        tree = (await runtime.run(tree_of_thoughts, "1 1 1 1 1 1", judge="values")).value.tree
    long = [replace(node, move=f"{node.move} {'and more ' * 20}") for node in tree]
    lines = tree_lines(long)
    assert len(lines) <= 2 * (MAX_SHOWN + 6)
    assert max(map(len, lines)) <= 76
    assert "…" in lines[1]
    assert len(tree) > MAX_SHOWN


@pytest.mark.parametrize("width", [2, 20, 76, 200])
def test_no_line_of_a_deep_tree_is_wider_than_asked_for(width: int) -> None:
    path = [Node(f"step {at}", at, at - 1 if at else None, 0.5, "open", True) for at in range(51)]
    beside = [Node("dead", at + 1, at, None, "dead", False) for at in range(50)]
    lines = tree_lines([*path, *beside], width=width)
    assert len(lines) == 101
    assert max(map(len, lines)) <= width
    if width >= 76:
        assert any(line.startswith("…49 ") and "step 50" in line for line in lines)
        assert all(any(f" step {at} " in line for line in lines) for at in range(1, 51))


async def test_the_picture_is_svg_with_a_box_for_each_thought_that_is_shown(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(last)) as runtime:
        solution = (await runtime.run(tree_of_thoughts, "4 6")).value
    root = ElementTree.fromstring(tree_svg(solution.tree))
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    assert solution.solved
    assert "4 6" in texts
    assert "4 * 6 = 24" in texts
    assert "4 dead ends" in texts
    boxes = root.findall(".//{http://www.w3.org/2000/svg}g")
    assert len(boxes) == 2

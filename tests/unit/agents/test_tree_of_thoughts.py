"""Tree of Thoughts as a flow: it solves, is cut off by its deadline, and goes on when resumed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

import pytest

from agents.tree_of_thoughts.command import to_text
from agents.tree_of_thoughts.pipeline import tree_of_thoughts
from agents.tree_of_thoughts.search import Order
from agents.tree_of_thoughts.tree_svg import tree_svg
from orchestrator.testing import ScriptedEngine
from serving.errors import EngineDied
from serving.generation import GenerationRequest
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime
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
        with pytest.raises(ValueError, match="whole numbers"):
            await runtime.run(tree_of_thoughts, "twenty-four")


async def test_the_picture_is_svg_with_a_box_for_each_thought(tmp_path: Path) -> None:
    async with scripted_runtime(tmp_path, ScriptedEngine(last)) as runtime:
        solution = (await runtime.run(tree_of_thoughts, "4 6")).value
    root = ElementTree.fromstring(tree_svg(solution.tree))
    boxes = root.findall(".//{http://www.w3.org/2000/svg}rect")
    assert len(boxes) == len(solution.tree)
    assert solution.solved

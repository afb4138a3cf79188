"""The Game of 24: its moves, and what solves it."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.tree_of_thoughts.search import Search, Status
from agents.tree_of_thoughts.tasks.game24 import GameOf24


def solve(task: GameOf24) -> Search:
    """Expand everything until it is solved."""
    search = Search(task.start, max_depth=task.max_depth)
    while thoughts := search.ask():
        for thought in thoughts:
            for new in search.expand(thought, task.moves(thought.step.state)):
                search.tell(new, 0.5)
    return search


@pytest.mark.parametrize("numbers", ["4 5 6 10", "3 3 8 8", "1 5 5 5", "1, 3, 4, 6", "24 1"])
def test_puzzles_with_a_solution_are_solved(numbers: str) -> None:
    assert solve(GameOf24.parse(numbers)).solution is not None


@pytest.mark.parametrize("numbers", ["1 1 1 1", "2 2"])
def test_puzzles_without_one_end_without_one(numbers: str) -> None:
    assert solve(GameOf24.parse(numbers)).solution is None


@given(st.lists(st.integers(0, 13), min_size=2, max_size=4))
def test_each_move_replaces_two_numbers_by_the_result_of_its_equation(numbers: list[int]) -> None:
    task = GameOf24(numbers)
    before = sorted(map(Fraction, numbers))
    for step in task.moves(task.start):
        first, operator, second, _, result = step.move.split()
        a, b, c = Fraction(first), Fraction(second), Fraction(result)
        assert c == {"+": a + b, "-": a - b, "*": a * b}.get(operator, a / b if b else None)
        rest = list(before)
        rest.remove(a)
        rest.remove(b)
        assert sorted(map(Fraction, step.state.split())) == sorted([*rest, c])
        assert (step.status is Status.OPEN) == (len(numbers) > 2)


@pytest.mark.parametrize("text", ["", "24", "1 2 x", "1 2 3 4 5 6 7", "1.5 2", "-1 2"])
def test_a_text_that_is_no_puzzle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="whole numbers"):
        GameOf24.parse(text)

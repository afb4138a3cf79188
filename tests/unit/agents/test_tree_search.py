"""The search of Tree of Thoughts: what it expands next, what it merges, what it hands over."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.tree_of_thoughts.search import Order, Search, Status, Step, Thought
from agents.tree_of_thoughts.solution import solution_of
from agents.tree_of_thoughts.tasks.game24 import GameOf24
from agents.tree_of_thoughts.tree_text import tree_lines


def grown(
    order: Order, values: Callable[[str], float], *, beam: int = 2, max_depth: int = 3
) -> tuple[Search, list[list[str]]]:
    """A binary tree of texts, searched to its end; and the states expanded in each round."""
    search = Search("", order=order, beam=beam, max_depth=max_depth)
    rounds: list[list[str]] = []
    while thoughts := search.ask():
        rounds.append([each.step.state for each in thoughts])
        for thought in thoughts:
            steps = [Step(letter, thought.step.state + letter) for letter in "ab"]
            for new in search.expand(thought, steps):
                search.tell(new, values(new.step.state))
    return search, rounds


def test_breadth_expands_the_beam_of_each_level_and_gives_up_the_rest() -> None:
    _, rounds = grown(Order.BREADTH, lambda state: state.count("b") / 3)
    assert rounds == [[""], ["b", "a"], ["bb", "ba"]]


def test_best_expands_every_thought_in_the_end() -> None:
    _, rounds = grown(Order.BEST, lambda state: state.count("b") / 3)
    expanded = [state for states in rounds for state in states]
    assert rounds[:2] == [[""], ["b", "a"]]
    assert sorted(expanded) == sorted(["", "a", "b", "aa", "ab", "ba", "bb"])


def test_best_goes_back_to_a_thought_that_was_passed_over() -> None:
    values = {"a": 0.9, "b": 0.5, "aa": 0.1, "ab": 0.1}
    _, rounds = grown(Order.BEST, lambda state: values.get(state, 0.0), beam=1)
    assert [states[0] for states in rounds[:3]] == ["", "a", "b"]


@given(
    order=st.sampled_from(Order),
    beam=st.integers(1, 5),
    max_depth=st.integers(1, 4),
    weights=st.lists(st.floats(0, 1), min_size=4, max_size=4),
)
def test_no_state_is_expanded_twice_nor_beyond_the_beam_or_depth(
    order: Order, beam: int, max_depth: int, weights: list[float]
) -> None:
    search, rounds = grown(
        order, lambda state: weights[len(state) % 4], beam=beam, max_depth=max_depth
    )
    expanded = [state for states in rounds for state in states]
    assert len(set(expanded)) == len(expanded)
    assert all(len(states) <= beam for states in rounds)
    assert all(len(state) < max_depth for state in expanded)
    assert search.best().depth == max_depth


def test_equal_states_are_one_thought() -> None:
    search = Search("start")
    first, second = search.expand(search.thoughts[0], [Step("x", "1"), Step("y", "2")])
    for each in (first, second):
        search.tell(each, 0.5)
    assert search.expand(first, [Step("z", "2"), Step("w", "start"), Step("v", "3")])[0].number == 3
    assert (len(search.thoughts), search.num_merged) == (4, 2)


def test_a_solution_ends_the_search_and_is_handed_over() -> None:
    search = Search("start")
    found = search.expand(
        search.thoughts[0],
        [Step("x", "1"), Step("y", "2", Status.SOLVED), Step("z", "3", Status.DEAD)],
    )
    search.tell(found[0], 1.0)
    assert search.ask() == []
    assert search.best() is found[1]
    assert [each.step.state for each in search.path_to(found[1])] == ["start", "2"]


def test_of_two_solutions_the_one_with_the_better_beginning_is_handed_over() -> None:
    search = Search("start")
    bad, good = search.expand(search.thoughts[0], [Step("x", "1"), Step("y", "2")])
    search.tell(bad, 0.2)
    search.tell(good, 0.8)
    for thought in (bad, good):
        search.expand(thought, [Step("z", thought.step.state + "3", Status.SOLVED)])
    assert search.best().step.state == "23"
    search.tell(search.thoughts[3], 0.9)
    assert search.best().step.state == "13"


def test_thoughts_that_are_dead_or_not_judged_are_not_expanded() -> None:
    search = Search("start")
    found = search.expand(search.thoughts[0], [Step("x", "1", Status.DEAD), Step("y", "2")])
    assert search.ask() == []
    assert search.best() is found[1]


def test_the_tree_marks_the_way_to_the_best_thought_and_counts_what_it_hides() -> None:
    search = Search("start")
    found = search.expand(search.thoughts[0], [Step(f"m{n}", str(n)) for n in range(4)])
    for each in found:
        search.tell(each, each.number / 10)
    task = GameOf24([1, 2])
    lines = tree_lines(solution_of(task, search).tree, max_children=2)
    assert lines == ["1 2", "├─ * m3  0.40", "├─ m2  0.30", "└─ and 2 more"]


@pytest.mark.parametrize("value", [-0.1, 1.1])
def test_a_value_out_of_range_is_a_bug(value: float) -> None:
    search = Search("start")
    [thought] = search.expand(search.thoughts[0], [Step("x", "1")])
    assert isinstance(thought, Thought)
    with pytest.raises(AssertionError):
        search.tell(thought, value)

"""The crossword of 5 by 5: its moves, its checks, and the search that fills it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.tree_of_thoughts.board_svg import board_svg
from agents.tree_of_thoughts.search import Status, Step
from agents.tree_of_thoughts.tasks.crossword import Crossword, board_text, pattern_in
from tests.unit.agents.tree_of_thoughts_samples import ACROSS, ANSWERS, DOWN, OTHERS

SOLVED = "".join(ANSWERS[:5])


def crossword(*words: str) -> Crossword:
    return Crossword(ACROSS, DOWN, words or ANSWERS + OTHERS)


def moves(task: Crossword, state: str) -> list[Step]:
    return list(task.moves(state) or ())


def test_a_move_places_a_word_that_leaves_each_crossing_slot_a_word() -> None:
    task = crossword()
    steps = moves(task, task.start)
    words = ANSWERS + OTHERS
    begins = {word: {other[0] for other in words if other != word} for word in words}
    fitting = sorted(word for word in words if set(word) <= begins[word])
    assert 2 <= len(fitting) < len(words)
    assert [step.move for step in steps] == [f"1 across: {word}" for word in fitting]
    assert all(step.status is Status.OPEN for step in steps)


@given(st.randoms(use_true_random=False))
def test_whichever_moves_are_taken_letters_cross_and_no_word_stands_twice(chance: object) -> None:
    task, words = crossword(), set(ANSWERS + OTHERS)
    state = task.start
    while steps := moves(task, state):
        step = chance.choice(steps)  # type: ignore[attr-defined]
        kept = zip(state, step.state, strict=True)
        assert all(before in (".", after) for before, after in kept)
        state = step.state
        patterns = [pattern_in(state, slot) for slot in task.slots]
        complete = [pattern for pattern in patterns if "." not in pattern]
        assert len(set(complete)) == len(complete)
        assert set(complete) <= words
        assert (step.status is Status.SOLVED) == (len(complete) == 10)


def test_a_step_claims_each_word_that_it_completes_for_its_clue() -> None:
    task = crossword(*ANSWERS)
    [step] = moves(task, SOLVED[:20] + SOLVED[20:24] + ".")
    assert step.status is Status.SOLVED
    assert {one.option for one in step.continuations} == {"rally", "early"}


@pytest.mark.parametrize(
    ("proposal", "state"),
    [
        ("1 across: lapse", "lapse" + "." * 20),
        ("1A. LAPSE", "lapse" + "." * 20),
        ("I think 1 down is laser.", None),
        ("1 down - laser", "l....a....s....e....r...."),
        ("6 across: lapse", None),
        ("1 across: lapses", None),
        ("1 across: lap", None),
        ("", None),
    ],
)
def test_a_proposal_is_a_slot_and_a_word(proposal: str, state: str | None) -> None:
    task = Crossword(ACROSS, DOWN)
    step = task.step(task.start, proposal)
    assert (step.state if step else None) == state


def test_a_proposal_whose_letters_do_not_cross_or_whose_word_stands_there_is_none() -> None:
    task = Crossword(ACROSS, DOWN)
    state = "lapse" + "." * 20
    assert task.moves(state) is None
    assert task.step(state, "1 down: aroma") is None
    assert task.step(state, "1 across: laser") is None
    assert task.step(state, "1 down: lapse") is None
    assert task.step(state, "1 down: laser") is not None
    last = task.step(SOLVED[:24] + ".", "5 down: early")
    assert last is not None
    assert last.status is Status.SOLVED


def test_the_answer_is_the_board_with_the_clues() -> None:
    task = crossword()
    text = task.answer([])
    assert text.startswith(". . . . .\n")
    assert "4 down    .....  A slow animal" in text
    assert board_text(SOLVED).splitlines()[0] == "L A P S E"


def test_the_picture_has_a_cell_for_each_letter() -> None:
    svg = board_svg(["ab", "c."])
    assert svg.count("<rect") == 5
    assert [letter in svg for letter in (">A<", ">B<", ">C<", ">.<")] == [True, True, True, False]


def test_a_letter_whose_capital_is_two_letters_takes_one_cell() -> None:
    task = Crossword(ACROSS, DOWN)
    step = task.step(task.start, "1 across: straß")
    assert step is not None
    assert board_text(step.state).splitlines()[0] == "S T R A ß"
    assert ">ß<" in board_svg(task.board([step]))

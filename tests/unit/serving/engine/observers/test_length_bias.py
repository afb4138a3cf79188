"""How far foretold lengths were off: learned of each user, and of all for who is new."""

from __future__ import annotations

import numpy as np
import pytest

from serving.engine.observers.length_bias import MOST_OF_OTHERS, LengthBias
from serving.length_sketch import LENGTH_LEVELS, LengthSketch


def told(tokens: float) -> LengthSketch:
    return LengthSketch((tokens,) * len(LENGTH_LEVELS))


def answers(bias: LengthBias, user: int, count: int, *, predicted: float, true: int) -> None:
    for _ in range(count):
        bias.ended(user, told(predicted), true)


def bias_of_users() -> LengthBias:
    bias = LengthBias()
    for user in range(4):
        bias.begin(user)
    return bias


def ratios(bias: LengthBias, *users: int) -> list[float]:
    return [float(ratio) for ratio in bias.ratios(np.array(users, dtype=np.int64))]


def test_lengths_are_taken_as_foretold_until_some_answers_ended() -> None:
    bias = bias_of_users()
    assert ratios(bias, 3, 0, 3) == [1.0, 1.0, 1.0]
    assert ratios(bias) == []
    answers(bias, 0, 3, predicted=100.0, true=300)
    assert ratios(bias, 0) == [1.0]
    answers(bias, 0, 60, predicted=100.0, true=300)
    assert ratios(bias, 0) == pytest.approx([3.0])


def test_who_is_new_is_foretold_as_others_are() -> None:
    bias = bias_of_users()
    answers(bias, 0, 60, predicted=100.0, true=50)
    assert ratios(bias, 1) == pytest.approx([0.5])


def test_one_user_s_wrong_lengths_do_not_change_another_s() -> None:
    bias = bias_of_users()
    answers(bias, 0, 140, predicted=1.0, true=500)
    answers(bias, 1, 120, predicted=100.0, true=100)
    assert ratios(bias, 0, 1) == pytest.approx([500.0, 1.0])
    assert ratios(bias, 2) == [pytest.approx(MOST_OF_OTHERS)]


def test_a_number_that_is_given_anew_begins_anew() -> None:
    bias = bias_of_users()
    answers(bias, 0, 20, predicted=100.0, true=800)
    answers(bias, 1, 200, predicted=100.0, true=100)
    assert ratios(bias, 0) == pytest.approx([8.0])
    bias.begin(0)
    assert ratios(bias, 0) == [1.0]

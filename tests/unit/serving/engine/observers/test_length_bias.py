"""LengthBias: the ratio of true to predicted output lengths, of a user and of all users."""

from __future__ import annotations

import numpy as np
import pytest

from serving.engine.observers.length_bias import MAX_SHARED_RATIO, LengthBias
from serving.length_sketch import LENGTH_LEVELS, LengthSketch


def sketch(tokens: float) -> LengthSketch:
    return LengthSketch((tokens,) * len(LENGTH_LEVELS))


def add_answers(bias: LengthBias, user: int, count: int, *, predicted: float, true: int) -> None:
    for _ in range(count):
        bias.ended(user, sketch(predicted), true)


def bias_of_users() -> LengthBias:
    bias = LengthBias()
    for user in range(4):
        bias.begin(user)
    return bias


def ratios(bias: LengthBias, *users: int) -> list[float]:
    return [float(ratio) for ratio in bias.ratios(np.array(users, dtype=np.int64))]


def test_lengths_are_not_corrected_before_enough_answers_have_ended() -> None:
    bias = bias_of_users()
    assert ratios(bias, 3, 0, 3) == [1.0, 1.0, 1.0]
    assert ratios(bias) == []
    add_answers(bias, 0, 3, predicted=100.0, true=300)
    assert ratios(bias, 0) == [1.0]
    add_answers(bias, 0, 60, predicted=100.0, true=300)
    assert ratios(bias, 0) == pytest.approx([3.0])


def test_a_new_user_has_the_ratio_of_all_users() -> None:
    bias = bias_of_users()
    add_answers(bias, 0, 60, predicted=100.0, true=50)
    assert ratios(bias, 1) == pytest.approx([0.5])


def test_wrong_predictions_of_one_user_do_not_change_the_ratio_of_another() -> None:
    bias = bias_of_users()
    add_answers(bias, 0, 140, predicted=1.0, true=500)
    add_answers(bias, 1, 120, predicted=100.0, true=100)
    assert ratios(bias, 0, 1) == pytest.approx([500.0, 1.0])
    assert ratios(bias, 2) == [pytest.approx(MAX_SHARED_RATIO)]


def test_a_reused_number_has_the_ratio_of_a_new_user() -> None:
    bias = bias_of_users()
    add_answers(bias, 0, 20, predicted=100.0, true=800)
    add_answers(bias, 1, 200, predicted=100.0, true=100)
    assert ratios(bias, 0) == pytest.approx([8.0])
    bias.begin(0)
    assert ratios(bias, 0) == [1.0]

"""DefaultLength: output lengths without a prediction, of a user and of all users."""

from __future__ import annotations

import numpy as np

from serving.engine.observers.default_length import (
    KEPT_ANSWERS,
    MAX_USERS,
    MIN_USER_ANSWERS,
    DefaultLength,
)
from serving.engine.observers.service_counters import INITIAL_ROWS
from serving.length_sketch import LENGTH_LEVELS

UNKNOWN = [0.0] * len(LENGTH_LEVELS)


def of_users(num_users: int) -> DefaultLength:
    default_length = DefaultLength()
    for user in range(num_users):
        default_length.begin(user)
    return default_length


def add_answers(default_length: DefaultLength, user: int, *lengths: int) -> None:
    for length in lengths:
        default_length.ended(user, length)


def quantiles(default_length: DefaultLength, *users: int) -> list[list[float]]:
    return default_length.lengths(np.array(users, dtype=np.int64)).tolist()


def test_lengths_are_0_before_the_first_answer() -> None:
    default_length = of_users(2)
    assert quantiles(default_length, 1, 0, 1) == [UNKNOWN] * 3
    assert quantiles(default_length) == []


def test_lengths_are_the_quantiles_of_the_latest_answers() -> None:
    default_length = of_users(1)
    add_answers(default_length, 0, *[9000] * 50)
    latest = np.random.default_rng(7).integers(1, 500, KEPT_ANSWERS).tolist()
    add_answers(default_length, 0, *latest)
    np.testing.assert_allclose(quantiles(default_length, 0), [np.quantile(latest, LENGTH_LEVELS)])


def test_a_new_user_has_the_lengths_of_all_users_until_it_has_enough_answers() -> None:
    default_length = of_users(3)
    add_answers(default_length, 0, *[100] * 90)
    assert quantiles(default_length, 0, 1, 2) == [[100.0] * len(LENGTH_LEVELS)] * 3
    add_answers(default_length, 1, *[7] * MIN_USER_ANSWERS)
    both = [100] * MIN_USER_ANSWERS + [7] * MIN_USER_ANSWERS
    shared = np.quantile(both, LENGTH_LEVELS).tolist()
    assert quantiles(default_length, 1, 2) == [[7.0] * len(LENGTH_LEVELS), shared]


def test_each_user_has_the_same_weight_in_the_lengths_of_all_users() -> None:
    """However many answers it had; and only users with recent answers count."""
    default_length = of_users(MAX_USERS + 2)
    for user in range(3):
        add_answers(default_length, user, *[40] * MIN_USER_ANSWERS)
    add_answers(default_length, 3, *[30_000] * 500)
    shared = np.quantile([40] * 3 * MIN_USER_ANSWERS + [30_000] * MIN_USER_ANSWERS, LENGTH_LEVELS)
    assert quantiles(default_length, 4) == [shared.tolist()]
    for user in range(5, MAX_USERS + 2):
        add_answers(default_length, user, *[40] * MIN_USER_ANSWERS)
    for user in range(4):
        add_answers(default_length, user, 40)
    assert quantiles(default_length, 4)[0][LENGTH_LEVELS.index(0.5)] == 40.0


def test_a_reused_number_has_no_answers() -> None:
    default_length = of_users(2)
    add_answers(default_length, 0, *[5] * MIN_USER_ANSWERS)
    add_answers(default_length, 1, *[30] * KEPT_ANSWERS)
    assert quantiles(default_length, 0) == [[5.0] * len(LENGTH_LEVELS)]
    default_length.begin(0)
    add_answers(default_length, 1, 30)
    assert quantiles(default_length, 0) == [[30.0] * len(LENGTH_LEVELS)]
    add_answers(default_length, 0, *[40] * (MIN_USER_ANSWERS - 1))
    add_answers(default_length, 1, *[40] * KEPT_ANSWERS)
    assert quantiles(default_length, 0) == [[40.0] * len(LENGTH_LEVELS)], "old answers do not count"


def test_the_table_grows_with_the_number_of_users() -> None:
    num_users = 5 * INITIAL_ROWS
    default_length = of_users(num_users)
    add_answers(default_length, num_users - 1, *[9] * MIN_USER_ANSWERS)
    add_answers(default_length, 0, *[4] * MIN_USER_ANSWERS)
    assert quantiles(default_length, num_users - 1, 0) == [
        [9.0] * len(LENGTH_LEVELS),
        [4.0] * len(LENGTH_LEVELS),
    ]

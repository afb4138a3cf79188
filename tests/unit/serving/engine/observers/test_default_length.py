"""How long answers are of which no length was foretold: to a user, and to all for who is new."""

from __future__ import annotations

import numpy as np

from serving.engine.observers.default_length import FEWEST_OWN, KEPT, MOST_USERS, DefaultLength
from serving.engine.observers.service_counters import ROOM
from serving.length_sketch import LENGTH_LEVELS

UNKNOWN = [0.0] * len(LENGTH_LEVELS)


def of_users(count: int) -> DefaultLength:
    usual = DefaultLength()
    for user in range(count):
        usual.begin(user)
    return usual


def answers(usual: DefaultLength, user: int, *lengths: int) -> None:
    for length in lengths:
        usual.ended(user, length)


def shown(usual: DefaultLength, *users: int) -> list[list[float]]:
    return usual.lengths(np.array(users, dtype=np.int64)).tolist()


def test_nothing_is_known_before_an_answer_has_ended() -> None:
    usual = of_users(2)
    assert shown(usual, 1, 0, 1) == [UNKNOWN] * 3
    assert shown(usual) == []


def test_lengths_are_the_quantiles_of_the_latest() -> None:
    usual = of_users(1)
    answers(usual, 0, *[9000] * 50)
    latest = np.random.default_rng(7).integers(1, 500, KEPT).tolist()
    answers(usual, 0, *latest)
    np.testing.assert_allclose(shown(usual, 0), [np.quantile(latest, LENGTH_LEVELS)])


def test_who_is_new_is_taken_to_be_answered_as_all_are_and_others_by_their_own() -> None:
    usual = of_users(3)
    answers(usual, 0, *[100] * 90)
    assert shown(usual, 0, 1, 2) == [[100.0] * len(LENGTH_LEVELS)] * 3
    answers(usual, 1, *[7] * FEWEST_OWN)
    alike = np.quantile([100] * FEWEST_OWN + [7] * FEWEST_OWN, LENGTH_LEVELS).tolist()
    assert shown(usual, 1, 2) == [[7.0] * len(LENGTH_LEVELS), alike]


def test_nobody_s_answers_count_for_more_than_another_s() -> None:
    """However many they are, and only those count who had answers lately."""
    usual = of_users(MOST_USERS + 2)
    for user in range(3):
        answers(usual, user, *[40] * FEWEST_OWN)
    answers(usual, 3, *[30_000] * 500)
    shared = np.quantile([40] * 3 * FEWEST_OWN + [30_000] * FEWEST_OWN, LENGTH_LEVELS)
    assert shown(usual, 4) == [shared.tolist()]
    for user in range(5, MOST_USERS + 2):
        answers(usual, user, *[40] * FEWEST_OWN)
    for user in range(4):
        answers(usual, user, 40)
    assert shown(usual, 4)[0][LENGTH_LEVELS.index(0.5)] == 40.0


def test_a_number_that_is_given_anew_begins_anew() -> None:
    usual = of_users(2)
    answers(usual, 0, *[5] * FEWEST_OWN)
    answers(usual, 1, *[30] * KEPT)
    assert shown(usual, 0) == [[5.0] * len(LENGTH_LEVELS)]
    usual.begin(0)
    answers(usual, 1, 30)
    assert shown(usual, 0) == [[30.0] * len(LENGTH_LEVELS)]
    answers(usual, 0, *[40] * (FEWEST_OWN - 1))
    answers(usual, 1, *[40] * KEPT)
    assert shown(usual, 0) == [[40.0] * len(LENGTH_LEVELS)], "its former answers count no more"


def test_there_is_room_for_any_number_of_users() -> None:
    count = 5 * ROOM
    usual = of_users(count)
    answers(usual, count - 1, *[9] * FEWEST_OWN)
    answers(usual, 0, *[4] * FEWEST_OWN)
    assert shown(usual, count - 1, 0) == [[9.0] * len(LENGTH_LEVELS), [4.0] * len(LENGTH_LEVELS)]

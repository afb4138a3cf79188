"""How much of later calls' prompts the prefix cache held: learned of each user, and of all."""

from __future__ import annotations

import numpy as np
import pytest

from serving.engine.observers.prefix_hit_rate import MEMORY_CALLS, MOST_OF_OTHERS, PrefixHitRate


def share_of_users() -> PrefixHitRate:
    cached = PrefixHitRate()
    for user in range(4):
        cached.begin(user)
    return cached


def shares(cached: PrefixHitRate, *users: int) -> list[float]:
    return [float(share) for share in cached.shares(np.array(users, dtype=np.int64))]


def ended(cached: PrefixHitRate, user: int, count: int, *, prompt: int, found: int) -> None:
    for _ in range(count):
        cached.ended(user, prompt, found)


def test_nothing_is_expected_to_be_found_before_anything_was() -> None:
    cached = share_of_users()
    assert shares(cached, 3, 0, 3) == [0.0, 0.0, 0.0]
    assert shares(cached) == []


def test_each_user_has_its_own_share_and_who_is_new_that_of_all() -> None:
    cached = share_of_users()
    ended(cached, 0, 400, prompt=1000, found=900)
    ended(cached, 1, 400, prompt=1000, found=0)
    looping, plain, new = shares(cached, 0, 1, 2)
    assert looping == pytest.approx(0.9, abs=0.04)
    assert plain == pytest.approx(0.0, abs=0.04)
    assert plain < new < looping


def test_what_one_user_finds_says_little_of_the_others() -> None:
    """However many and however long its calls are."""
    cached = share_of_users()
    ended(cached, 1, 20, prompt=16, found=0)
    ended(cached, 0, 4000, prompt=100_000, found=100_000)
    looping, plain, new = shares(cached, 0, 1, 2)
    assert looping > 0.98
    assert new == MOST_OF_OTHERS
    assert plain < 0.15


def test_what_was_long_ago_is_forgotten() -> None:
    """As where the cache has become too small for all who loop."""
    cached = share_of_users()
    ended(cached, 0, 100, prompt=1000, found=1000)
    ended(cached, 0, 5 * MEMORY_CALLS, prompt=1000, found=0)
    assert shares(cached, 0, 1) == pytest.approx([0.0, 0.0], abs=0.01)


def test_a_share_lies_within_0_and_1() -> None:
    cached = share_of_users()
    ended(cached, 0, 3000, prompt=7, found=7)
    ended(cached, 1, 3000, prompt=7, found=0)
    assert all(0.0 <= share <= 1.0 for share in shares(cached, 0, 1, 2))


def test_long_prompts_weigh_more() -> None:
    cached = share_of_users()
    ended(cached, 0, 1, prompt=9000, found=9000)
    ended(cached, 0, 1, prompt=1000, found=0)
    ended(cached, 1, 2, prompt=1000, found=500)
    assert shares(cached, 0)[0] > shares(cached, 1)[0]


def test_a_number_that_is_given_anew_begins_anew() -> None:
    cached = share_of_users()
    ended(cached, 0, 50, prompt=1000, found=1000)
    ended(cached, 1, 50, prompt=1000, found=0)
    before = shares(cached, 0)[0]
    cached.begin(0)
    ended(cached, 1, 2000, prompt=1000, found=0)
    assert shares(cached, 0)[0] == shares(cached, 2)[0] < before

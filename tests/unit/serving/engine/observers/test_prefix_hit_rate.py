"""PrefixHitRate: the prefix-cache hit rate of later calls, of a user and of all users."""

from __future__ import annotations

import numpy as np
import pytest

from serving.engine.observers.prefix_hit_rate import MAX_SHARED_RATE, MEMORY_CALLS, PrefixHitRate


def rate_of_users() -> PrefixHitRate:
    hit_rate = PrefixHitRate()
    for user in range(4):
        hit_rate.begin(user)
    return hit_rate


def rates(hit_rate: PrefixHitRate, *users: int) -> list[float]:
    return [float(rate) for rate in hit_rate.rates(np.array(users, dtype=np.int64))]


def add_calls(hit_rate: PrefixHitRate, user: int, count: int, *, prompt: int, cached: int) -> None:
    for _ in range(count):
        hit_rate.ended(user, prompt, cached)


def test_the_rate_is_0_before_the_first_call() -> None:
    hit_rate = rate_of_users()
    assert rates(hit_rate, 3, 0, 3) == [0.0, 0.0, 0.0]
    assert rates(hit_rate) == []


def test_each_user_has_its_own_rate_and_a_new_user_that_of_all_users() -> None:
    hit_rate = rate_of_users()
    add_calls(hit_rate, 0, 400, prompt=1000, cached=900)
    add_calls(hit_rate, 1, 400, prompt=1000, cached=0)
    looping, plain, new = rates(hit_rate, 0, 1, 2)
    assert looping == pytest.approx(0.9, abs=0.04)
    assert plain == pytest.approx(0.0, abs=0.04)
    assert plain < new < looping


def test_the_hits_of_one_user_hardly_change_the_rate_of_the_others() -> None:
    """However many and however long its calls are."""
    hit_rate = rate_of_users()
    add_calls(hit_rate, 1, 20, prompt=16, cached=0)
    add_calls(hit_rate, 0, 4000, prompt=100_000, cached=100_000)
    looping, plain, new = rates(hit_rate, 0, 1, 2)
    assert looping > 0.98
    assert new == MAX_SHARED_RATE
    assert plain < 0.15


def test_old_calls_lose_their_weight() -> None:
    """For example when the cache has become too small for all looping agents."""
    hit_rate = rate_of_users()
    add_calls(hit_rate, 0, 100, prompt=1000, cached=1000)
    add_calls(hit_rate, 0, 5 * MEMORY_CALLS, prompt=1000, cached=0)
    assert rates(hit_rate, 0, 1) == pytest.approx([0.0, 0.0], abs=0.01)


def test_a_rate_is_between_0_and_1() -> None:
    hit_rate = rate_of_users()
    add_calls(hit_rate, 0, 3000, prompt=7, cached=7)
    add_calls(hit_rate, 1, 3000, prompt=7, cached=0)
    assert all(0.0 <= rate <= 1.0 for rate in rates(hit_rate, 0, 1, 2))


def test_long_prompts_have_more_weight() -> None:
    hit_rate = rate_of_users()
    add_calls(hit_rate, 0, 1, prompt=9000, cached=9000)
    add_calls(hit_rate, 0, 1, prompt=1000, cached=0)
    add_calls(hit_rate, 1, 2, prompt=1000, cached=500)
    assert rates(hit_rate, 0)[0] > rates(hit_rate, 1)[0]


def test_a_reused_number_has_the_rate_of_a_new_user() -> None:
    hit_rate = rate_of_users()
    add_calls(hit_rate, 0, 50, prompt=1000, cached=1000)
    add_calls(hit_rate, 1, 50, prompt=1000, cached=0)
    before = rates(hit_rate, 0)[0]
    hit_rate.begin(0)
    add_calls(hit_rate, 1, 2000, prompt=1000, cached=0)
    assert rates(hit_rate, 0)[0] == rates(hit_rate, 2)[0] < before

"""UserStatistics: another one that begins with its state counts and predicts the same."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.observers.service_counters import (
    FAIR_MEMORY_S,
    FORGET_AFTER_S,
    ServiceCounters,
)
from serving.engine.observers.user_statistics import MAX_USERS, UserState, UserStatistics
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.slo import BEST_EFFORT, FutureWork
from tests.strategies import law
from tests.unit.serving.serving_examples import compound

PREDICTED = replace(BEST_EFFORT, length=LengthSketch((50.0,) * len(LENGTH_LEVELS)))

CALLS = st.lists(
    st.tuples(
        st.sampled_from(["", "ann", "bob", "eve", "kim"]),
        st.sampled_from([PREDICTED, BEST_EFFORT]),
        st.integers(1, 5000),  # output tokens
        st.integers(0, 100),  # cached tokens of 100
        st.sampled_from([0.0, 1.0, FAIR_MEMORY_S, FORGET_AFTER_S]),  # seconds
        st.integers(1, 20),  # times
    ),
    max_size=30,
)


def run(users: UserStatistics, calls: list[Any], now_s: float) -> float:
    """Make these calls one after the other; each is of a program of two stages."""
    for call, (name, slo, output_tokens, cached_tokens, seconds, times) in enumerate(calls):
        number = users.open(name, now_s)
        for _ in range(times):
            for stage in range(2):
                request_id = f"{call}.{stage}"
                future = FutureWork(1, 0, 100.0 * (1 - stage), 0.0, 0.0)
                of_stage = compound(60.0, stage=stage, future=future)
                users.future_bias.arrived(request_id, call, of_stage, is_new=not stage)
                users.future_bias.ended(request_id, number, output_tokens, is_complete=True)
            users.learn_length(number, slo, output_tokens)
            users.learn_hits(number, 100, cached_tokens)
            users.counters.add(np.array([number]), np.array([float(output_tokens)]), now_s)
        now_s += seconds
        users.close(number, now_s)
    return now_s


def through_a_file(state: UserState) -> UserState:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=UserState)


@law
@given(calls=CALLS, now_s=st.sampled_from([0.0, 1e6]), age_s=st.floats(0, 500))
def test_restored_users_have_the_corrections_that_they_had(
    calls: list[Any], now_s: float, age_s: float
) -> None:
    before, after = UserStatistics(), UserStatistics()
    now_s = run(before, calls, now_s)
    state = through_a_file(before.state(now_s))
    after.restore(state, 3e5, age_s=age_s)
    numbers = before.counters.latest(now_s, MAX_USERS)
    assert len(numbers) == len(state.names)
    newcomer = before.open("newcomer", now_s), after.open("newcomer", 3e5)
    numbers_before = np.append(numbers, newcomer[0])
    numbers_after = np.append(np.arange(len(numbers)), newcomer[1])
    expected, restored = before.learned(numbers_before), after.learned(numbers_after)
    for name, values in expected.items():
        np.testing.assert_array_equal(restored[name], values, err_msg=name)


@law
@given(calls=CALLS, age_s=st.floats(0, 500))
def test_restored_users_have_the_tokens_that_an_idle_engine_would_count(
    calls: list[Any], age_s: float
) -> None:
    before, after = UserStatistics(), UserStatistics()
    now_s = run(before, calls, 1e5)
    state = through_a_file(before.state(now_s))
    after.restore(state, 7.0, age_s=age_s)
    numbers = before.counters.latest(now_s, MAX_USERS)
    expected = before.counters.tokens(numbers, now_s + age_s)
    np.testing.assert_allclose(after.counters.tokens(np.arange(len(numbers)), 7.0), expected)
    names = [each.name for each in state.names]
    known = [before.counters.knows(name, now_s + age_s) for name in names]
    assert [after.counters.knows(name, 7.0) for name in names] == known


def test_a_user_with_a_request_in_the_engine_counts_as_one_that_has_just_ended() -> None:
    before, after = UserStatistics(), UserStatistics()
    before.open("ann", 100.0)
    after.restore(before.state(50_000.0), 0.0, age_s=FORGET_AFTER_S - 1)
    assert after.counters.knows("ann", 0.0)
    assert not after.counters.knows("ann", 1.0)
    assert not after.counters.is_open("ann")


def test_a_user_that_is_forgotten_after_a_restart_begins_as_a_new_one() -> None:
    before, after = UserStatistics(), UserStatistics()
    run(before, [("ann", PREDICTED, 400, 50, 0.0, 40), ("bob", PREDICTED, 50, 0, 0.0, 40)], 0.0)
    after.restore(before.state(0.0), 0.0, age_s=FORGET_AFTER_S)
    ann, new = after.open("ann", 0.0), after.open("new", 0.0)
    for values in after.learned(np.array([ann, new])).values():
        np.testing.assert_array_equal(values[0], values[1])
    assert after.counters.tokens(np.array([ann]), 0.0) == [0.0]


def test_a_state_has_the_latest_users_only() -> None:
    users = UserStatistics()
    for number in range(MAX_USERS + 10):
        run(users, [(f"user {number}", BEST_EFFORT, 10, 0, 0.01, 1)], 0.01 * number)
    users.open("user 0", 10.0)
    names = [each.name for each in users.state(10.0).names]
    assert names == [f"user {number}" for number in range(11, MAX_USERS + 10)] + ["user 0"]


def test_of_many_users_with_open_requests_the_latest_are_in_a_state() -> None:
    users = UserStatistics()
    for number in range(MAX_USERS + 10):
        users.open(f"user {number}", 0.01 * number)
    names = [each.name for each in users.state(10.0).names]
    assert names == [f"user {number}" for number in range(10, MAX_USERS + 10)]


def test_restored_users_are_forgotten_in_the_order_of_their_last_request() -> None:
    before, after = UserStatistics(), UserStatistics()
    for number in range(3):
        run(before, [(f"user {number}", BEST_EFFORT, 10, 0, 0.0, 1)], 100.0 * number)
    after.restore(before.state(200.0), 0.0, age_s=0.0)
    assert list(after.counters.latest(FORGET_AFTER_S - 150.0, 10)) == [1, 2]
    assert list(after.counters.latest(FORGET_AFTER_S - 50.0, 10)) == [2]


@pytest.mark.parametrize("memory_s", [FAIR_MEMORY_S, math.inf])
def test_restored_counters_decay_as_others_do(memory_s: float) -> None:
    before, after = ServiceCounters(memory_s=memory_s), ServiceCounters(memory_s=memory_s)
    number = before.open("a", 5.0)
    before.add(np.array([number]), np.array([70.0]), 5.0)
    after.restore(before.state(np.array([number]), 5.0), 1.0, age_s=60.0)
    share = math.exp(-60.0 / memory_s)
    assert after.tokens(np.array([0]), 1.0) == pytest.approx([70.0 * share])

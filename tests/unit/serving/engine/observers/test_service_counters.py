"""ServiceCounters and ProgramCalls: sums by name, and the reuse of numbers."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from typing import NoReturn

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from serving.engine.observers.service_counters import (
    _PRUNE_ABOVE,
    FORGET_AFTER_S,
    MAX_STAGE_CALLS,
    ProgramCalls,
    ServiceCounters,
)
from serving.policies.fairness import LEAD
from tests.strategies import law

NAMES = st.sampled_from("abcdef")


class CountersAndSums(RuleBasedStateMachine):
    """The same operations on ServiceCounters and on dictionaries by name."""

    lifted = False

    def __init__(self) -> None:
        super().__init__()
        self.counters = ServiceCounters(lifted=self.lifted)
        self.now_s = 0.0
        self.number: dict[str, int] = {}
        self.open_requests: Counter[str] = Counter()
        self.sums: dict[str, float] = {}
        self.closed_s: dict[str, float] = {}

    @rule(name=NAMES)
    def arrive(self, name: str) -> None:
        present = [self.sums[each] for each in self.sums if self.open_requests[each]]
        is_known = name in self.sums and self.now_s - self.closed_s[name] < FORGET_AFTER_S
        assert self.counters.knows(name, self.now_s) == is_known
        if not is_known:
            self.sums[name] = 0.0
        self.closed_s[name] = math.inf
        if self.lifted and present and not self.open_requests[name]:
            self.sums[name] = max(self.sums[name], min(present))
        number = self.counters.open(name, self.now_s)
        assert self.number.setdefault(name, number) == number
        self.open_requests[name] += 1

    @rule(name=NAMES, seconds=st.floats(0, 100) | st.just(FORGET_AFTER_S))
    def end(self, name: str, seconds: float) -> None:
        if self.open_requests[name]:
            self.now_s += seconds
            self.open_requests[name] -= 1
            self.counters.close(self.number[name], self.now_s)
            if not self.open_requests[name]:
                self.closed_s[name] = self.now_s

    @rule(served=st.lists(st.tuples(NAMES, st.integers(0, 2048))))
    def compute(self, served: list[tuple[str, int]]) -> None:
        """Several requests of one name may be in a step."""
        served = [(name, tokens) for name, tokens in served if self.open_requests[name]]
        numbers = np.array([self.number[name] for name, _ in served], dtype=np.int64)
        tokens = np.array([tokens for _, tokens in served], dtype=np.float64)
        self.counters.add(numbers, tokens, self.now_s)
        for name, count in served:
            self.sums[name] += count

    @invariant()
    def every_counter_equals_the_sum_of_its_name(self) -> None:
        numbers = np.array([self.number[name] for name in self.sums], dtype=np.int64)
        assert self.counters.tokens(numbers, self.now_s).tolist() == list(self.sums.values())
        assert len(set(self.number.values())) == len(self.number)


class LiftedCountersAndSums(CountersAndSums):
    """A name that opens again starts at the least counter of the open names, or above."""

    lifted = True


@pytest.mark.parametrize("machine", [CountersAndSums, LiftedCountersAndSums])
def test_counters_equal_sums_by_name(machine: type[CountersAndSums]) -> None:
    run_state_machine_as_test(machine, settings=law)


def test_a_lifted_name_that_opens_starts_at_the_least_counter_of_the_open_names() -> None:
    users = ServiceCounters(lifted=True)
    first, second = users.open("first", 0.0), users.open("second", 0.0)
    users.add(np.array([first, second]), np.array([900.0, 500.0]), 0.0)
    late = users.open("late", 1.0)
    assert users.tokens(np.array([late]), 1.0) == 500.0
    assert users.open("late", 2.0) == late, "an open name is not lifted again"
    users.close(second, 3.0)
    users.add(np.array([first, late]), np.array([0.0, 1000.0]), 3.0)
    assert users.open("second", 4.0) == second
    assert users.tokens(np.array([second]), 4.0) == 900.0


MEMORY_S = 60.0


@pytest.mark.parametrize("began_s", [0.0, 1e6])
def test_tokens_are_discounted_by_their_age(began_s: float) -> None:
    """Also after a long uptime, and over a time in which unscaled sums would overflow."""
    users = ServiceCounters(memory_s=MEMORY_S)
    mine = np.array([users.open("mine", began_s)])
    users.add(mine, np.array([1000.0]), began_s)
    assert users.tokens(mine, began_s + MEMORY_S) == pytest.approx(1000.0 / np.e)
    users.add(mine, np.array([500.0]), began_s + MEMORY_S)
    later_s = began_s + 3 * MEMORY_S
    assert users.tokens(mine, later_s) == pytest.approx(1000.0 * np.exp(-3) + 500.0 * np.exp(-2))
    for hour in range(24):
        users.add(mine, np.array([100.0]), later_s + 3600.0 * hour)
    last_s = later_s + 3600.0 * 23
    assert users.tokens(mine, last_s) == pytest.approx(100.0)
    assert users.tokens(mine, last_s + MEMORY_S / 2) == pytest.approx(100.0 * np.exp(-0.5))


@pytest.mark.parametrize(("memory_s", "is_ahead"), [(MEMORY_S, True), (math.inf, False)])
def test_a_flooding_user_soon_leads_users_served_for_hours_if_tokens_are_discounted(
    memory_s: float, is_ahead: bool
) -> None:
    """Without a discount it could first take as many tokens as the others had in hours."""
    users = ServiceCounters(lifted=True, memory_s=memory_s)
    old = users.open("old", 0.0)
    for second in range(7200):
        users.add(np.array([old]), np.array([1000.0]), float(second))
    both = np.array([users.open("flooder", 7200.0), old])
    flooder_tokens, old_tokens = users.tokens(both, 7200.0)
    assert flooder_tokens == old_tokens
    for second in range(7200, 7260):
        users.add(both, np.array([9000.0, 1000.0]), float(second))
    flooder_tokens, old_tokens = users.tokens(both, 7260.0)
    assert (flooder_tokens > LEAD * old_tokens) == is_ahead


NUM_NAMES = 20_000


def test_a_number_is_reused_only_after_its_name_is_forgotten() -> None:
    """One name stays open; each new name has one request, which takes a second."""
    counters = ServiceCounters()
    stays = counters.open("stays", 0.0)
    counters.add(np.array([stays]), np.array([7.0]), 0.0)
    ended_s: dict[int, float] = {}
    num_reused = 0
    for index in range(NUM_NAMES):
        now_s = float(index)
        number = counters.open(f"name {index}", now_s)
        assert number != stays
        if number in ended_s:
            num_reused += 1
            assert now_s - ended_s[number] >= FORGET_AFTER_S
        assert counters.tokens(np.array([number]), now_s) == 0.0
        counters.add(np.array([number]), np.array([5.0]), now_s)
        counters.close(number, now_s + 1.0)
        ended_s[number] = now_s + 1.0
    assert num_reused > NUM_NAMES // 2, "numbers are reused"
    assert counters.tokens(np.array([stays]), float(NUM_NAMES)) == 7.0
    assert counters.open("stays", float(NUM_NAMES)) == stays


def test_a_name_that_opens_again_in_time_keeps_its_number_and_its_tokens() -> None:
    """However many other names open and close meanwhile."""
    counters = ServiceCounters()
    mine = counters.open("mine", 0.0)
    counters.add(np.array([mine]), np.array([3.0]), 0.0)
    for index in range(NUM_NAMES // 2):
        if index % 500 == 0:  # it closes and opens again
            counters.close(mine, float(index))
            assert counters.open("mine", index + 499.0) == mine
        number = counters.open(f"name {index}", float(index))
        counters.close(number, float(index))
    assert counters.tokens(np.array([mine]), float(NUM_NAMES)) == 3.0


def test_a_name_that_opens_again_too_late_is_new() -> None:
    """Even if its number was not reused."""
    counters = ServiceCounters()
    mine = np.array([counters.open("mine", 0.0)])
    counters.add(mine, np.array([3.0]), 0.0)
    assert counters.knows("mine", 10 * FORGET_AFTER_S), "it is still open"
    counters.close(int(mine[0]), 1.0)
    assert counters.knows("mine", FORGET_AFTER_S)
    assert not counters.knows("mine", 1.0 + FORGET_AFTER_S)
    counters.open("mine", 1.0 + FORGET_AFTER_S)
    assert counters.tokens(mine, 1.0 + FORGET_AFTER_S) == 0.0


def arrived(calls: ProgramCalls, number: int, stage: int, stage_calls: int, **how: bool) -> None:
    calls.arrived(number, stage, stage_calls, **{"is_new": False, "is_alone": False} | how)


def test_the_calls_of_a_stage_that_have_not_arrived_are_counted() -> None:
    calls = ProgramCalls()
    arrived(calls, 2, 0, 3, is_new=True)
    assert calls.missing(np.array([2, 0])).tolist() == [2, 0]
    arrived(calls, 2, 0, 3)
    arrived(calls, 2, 0, 3)
    arrived(calls, 2, 0, 3)  # one more than announced
    assert calls.missing(np.array([2])).tolist() == [0]
    arrived(calls, 2, 1, 2)
    assert calls.missing(np.array([2])).tolist() == [1]
    arrived(calls, 2, 1, 2, is_new=True)  # another program reuses the number
    assert calls.missing(np.array([2])).tolist() == [1]
    arrived(calls, 500, 0, 10**30, is_new=True)
    assert calls.missing(np.array([500, 2])).tolist() == [MAX_STAGE_CALLS - 1, 1]


def test_a_late_call_of_an_earlier_stage_does_not_change_the_present_one() -> None:
    calls = ProgramCalls()
    arrived(calls, 0, 1, 3, is_new=True)
    arrived(calls, 0, 0, 4)
    assert calls.missing(np.array([0])).tolist() == [2]
    arrived(calls, 0, 1, 3)
    arrived(calls, 0, 1, 3)
    assert calls.missing(np.array([0])).tolist() == [0]


def test_a_program_that_restarts_is_in_the_stage_of_its_first_call() -> None:
    """None of its calls is in the engine, so this first call is not a late one."""
    calls = ProgramCalls()
    arrived(calls, 0, 3, 1, is_new=True)
    arrived(calls, 0, 0, 4, is_alone=True)
    assert calls.missing(np.array([0])).tolist() == [3]


def test_a_stage_that_is_retried_misses_its_other_calls_again() -> None:
    calls = ProgramCalls()
    for attempt in range(2):
        arrived(calls, 0, 2, 3, is_new=attempt == 0, is_alone=True)
        assert calls.missing(np.array([0])).tolist() == [2]
        arrived(calls, 0, 2, 3)
        arrived(calls, 0, 2, 3)
        assert calls.missing(np.array([0])).tolist() == [0]


def test_calls_of_a_stage_that_arrive_one_after_another_do_not_restart_it() -> None:
    calls = ProgramCalls()
    missing = []
    for _ in range(3):  # each ends before the next arrives
        arrived(calls, 0, 0, 3, is_new=not missing, is_alone=True)
        missing.append(calls.missing(np.array([0])).tolist())
    assert missing == [[2], [1], [0]]


def test_tokens_of_ended_calls_are_kept_until_the_number_is_reused() -> None:
    calls = ProgramCalls()
    arrived(calls, 1, 0, 1, is_new=True)
    calls.ended(1, 30)
    arrived(calls, 1, 1, 1)
    calls.ended(1, 12)
    assert calls.ended_tokens(np.array([1, 0])).tolist() == [42.0, 0.0]
    arrived(calls, 1, 0, 1, is_new=True)
    assert calls.ended_tokens(np.array([1])).tolist() == [0.0]


class CountingDict(dict[int, float]):
    """Counts the keys that an iteration has visited."""

    num_visited = 0

    def __iter__(self) -> Iterator[int]:
        for key in super().__iter__():
            self.num_visited += 1
            yield key

    def items(self) -> NoReturn:  # type: ignore[override]
        raise AssertionError("this would visit all keys")


def test_a_new_name_visits_few_of_the_closed_names() -> None:
    """However many there are: this happens at every arrival."""
    counters = ServiceCounters()
    counters._closed_s = closed_s = CountingDict()
    for number in range(3 * _PRUNE_ABOVE):
        counters.close(counters.open(f"alone {number}", float(number) / 1000), float(number) / 1000)
    assert closed_s.num_visited <= 3 * _PRUNE_ABOVE
    counters.open("late", FORGET_AFTER_S + 5.0)
    assert len(counters._number) < 3 * _PRUNE_ABOVE


def test_a_clock_that_is_set_back_counts_as_one_that_stands_still() -> None:
    counters = ServiceCounters(memory_s=10.0)
    number = counters.open("a", 1e6)
    counters.add(np.array([number]), np.array([5.0]), 1e6)
    assert counters.tokens(np.array([number]), 0.0).tolist() == [5.0]

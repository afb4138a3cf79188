"""Accounts: sums by name, whose numbers are given again only when a name is forgotten."""

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
    MOST_CALLS,
    ProgramCalls,
    ServiceCounters,
)
from serving.policies.fairness import LEAD
from tests.strategies import law

NAMES = st.sampled_from("abcdef")


class AccountsAndSums(RuleBasedStateMachine):
    """The same operations on accounts and on plain dictionaries by name."""

    lifted = False

    def __init__(self) -> None:
        super().__init__()
        self.accounts = ServiceCounters(lifted=self.lifted)
        self.now_s = 0.0
        self.number: dict[str, int] = {}
        self.open_requests: Counter[str] = Counter()
        self.sums: dict[str, float] = {}
        self.closed_s: dict[str, float] = {}

    @rule(name=NAMES)
    def arrive(self, name: str) -> None:
        present = [self.sums[each] for each in self.sums if self.open_requests[each]]
        is_known = name in self.sums and self.now_s - self.closed_s[name] < FORGET_AFTER_S
        assert self.accounts.knows(name, self.now_s) == is_known
        if not is_known:
            self.sums[name] = 0.0
        self.closed_s[name] = math.inf
        if self.lifted and present and not self.open_requests[name]:
            self.sums[name] = max(self.sums[name], min(present))
        number = self.accounts.open(name, self.now_s)
        assert self.number.setdefault(name, number) == number
        self.open_requests[name] += 1

    @rule(name=NAMES, seconds=st.floats(0, 100) | st.just(FORGET_AFTER_S))
    def end(self, name: str, seconds: float) -> None:
        if self.open_requests[name]:
            self.now_s += seconds
            self.open_requests[name] -= 1
            self.accounts.close(self.number[name], self.now_s)
            if not self.open_requests[name]:
                self.closed_s[name] = self.now_s

    @rule(served=st.lists(st.tuples(NAMES, st.integers(0, 2048))))
    def compute(self, served: list[tuple[str, int]]) -> None:
        """A step may compute several requests of one name."""
        served = [(name, tokens) for name, tokens in served if self.open_requests[name]]
        numbers = np.array([self.number[name] for name, _ in served], dtype=np.int64)
        tokens = np.array([tokens for _, tokens in served], dtype=np.float64)
        self.accounts.add(numbers, tokens, self.now_s)
        for name, count in served:
            self.sums[name] += count

    @invariant()
    def every_sum_is_that_of_its_name(self) -> None:
        numbers = np.array([self.number[name] for name in self.sums], dtype=np.int64)
        assert self.accounts.tokens(numbers, self.now_s).tolist() == list(self.sums.values())
        assert len(set(self.number.values())) == len(self.number)


class LiftedAccountsAndSums(AccountsAndSums):
    """A name that comes back begins no lower than the least of those present."""

    lifted = True


@pytest.mark.parametrize("machine", [AccountsAndSums, LiftedAccountsAndSums])
def test_accounts_are_sums_by_name(machine: type[AccountsAndSums]) -> None:
    run_state_machine_as_test(machine, settings=law)


def test_who_saved_up_absence_begins_at_the_least_of_those_present() -> None:
    users = ServiceCounters(lifted=True)
    first, second = users.open("first", 0.0), users.open("second", 0.0)
    users.add(np.array([first, second]), np.array([900.0, 500.0]), 0.0)
    late = users.open("late", 1.0)
    assert users.tokens(np.array([late]), 1.0) == 500.0
    assert users.open("late", 2.0) == late, "who is present is not lifted again"
    users.close(second, 3.0)
    users.add(np.array([first, late]), np.array([0.0, 1000.0]), 3.0)
    assert users.open("second", 4.0) == second
    assert users.tokens(np.array([second]), 4.0) == 900.0


MEMORY_S = 60.0


@pytest.mark.parametrize("began_s", [0.0, 1e6])
def test_a_memory_lets_each_token_count_less_and_less(began_s: float) -> None:
    """However long the engine has been up, and over more time than a sum could grow without end."""
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
def test_who_floods_an_engine_that_served_others_for_hours_is_soon_ahead(
    memory_s: float, is_ahead: bool
) -> None:
    """Without an end to its memory, hours of others' tokens would be a claim to as many."""
    users = ServiceCounters(lifted=True, memory_s=memory_s)
    old = users.open("old", 0.0)
    for second in range(7200):
        users.add(np.array([old]), np.array([1000.0]), float(second))
    both = np.array([users.open("flooder", 7200.0), old])
    flooder_has, old_has = users.tokens(both, 7200.0)
    assert flooder_has == old_has
    for second in range(7200, 7260):
        users.add(both, np.array([9000.0, 1000.0]), float(second))
    flooder_has, old_has = users.tokens(both, 7260.0)
    assert (flooder_has > LEAD * old_has) == is_ahead


STREAM = 20_000


def test_a_number_is_given_again_only_when_its_name_is_forgotten() -> None:
    """Ever new names, each with one request of a second, and one name that stays."""
    accounts = ServiceCounters()
    stays = accounts.open("stays", 0.0)
    accounts.add(np.array([stays]), np.array([7.0]), 0.0)
    ended_s: dict[int, float] = {}
    given_again = 0
    for place in range(STREAM):
        now_s = float(place)
        number = accounts.open(f"name {place}", now_s)
        assert number != stays
        if number in ended_s:
            given_again += 1
            assert now_s - ended_s[number] >= FORGET_AFTER_S
        assert accounts.tokens(np.array([number]), now_s) == 0.0
        accounts.add(np.array([number]), np.array([5.0]), now_s)
        accounts.close(number, now_s + 1.0)
        ended_s[number] = now_s + 1.0
    assert given_again > STREAM // 2, "numbers do not grow for ever"
    assert accounts.tokens(np.array([stays]), float(STREAM)) == 7.0
    assert accounts.open("stays", float(STREAM)) == stays


def test_a_name_that_comes_back_in_time_keeps_its_number_and_its_sum() -> None:
    """However many others come and go meanwhile."""
    accounts = ServiceCounters()
    mine = accounts.open("mine", 0.0)
    accounts.add(np.array([mine]), np.array([3.0]), 0.0)
    for place in range(STREAM // 2):
        if place % 500 == 0:  # it comes back every so often
            accounts.close(mine, float(place))
            assert accounts.open("mine", place + 499.0) == mine
        number = accounts.open(f"name {place}", float(place))
        accounts.close(number, float(place))
    assert accounts.tokens(np.array([mine]), float(STREAM)) == 3.0


def test_a_name_that_comes_back_too_late_is_new() -> None:
    """Whether or not there are so many names that its number was given to another."""
    accounts = ServiceCounters()
    mine = np.array([accounts.open("mine", 0.0)])
    accounts.add(mine, np.array([3.0]), 0.0)
    assert accounts.knows("mine", 10 * FORGET_AFTER_S), "it is still here"
    accounts.close(int(mine[0]), 1.0)
    assert accounts.knows("mine", FORGET_AFTER_S)
    assert not accounts.knows("mine", 1.0 + FORGET_AFTER_S)
    accounts.open("mine", 1.0 + FORGET_AFTER_S)
    assert accounts.tokens(mine, 1.0 + FORGET_AFTER_S) == 0.0


def arrived(calls: ProgramCalls, number: int, stage: int, stage_calls: int, **how: bool) -> None:
    calls.arrived(number, stage, stage_calls, **{"is_new": False, "is_alone": False} | how)


def test_the_calls_of_a_stage_that_are_still_to_arrive_are_counted() -> None:
    calls = ProgramCalls()
    arrived(calls, 2, 0, 3, is_new=True)
    assert calls.missing(np.array([2, 0])).tolist() == [2, 0]
    arrived(calls, 2, 0, 3)
    arrived(calls, 2, 0, 3)
    arrived(calls, 2, 0, 3)  # one more than was said
    assert calls.missing(np.array([2])).tolist() == [0]
    arrived(calls, 2, 1, 2)
    assert calls.missing(np.array([2])).tolist() == [1]
    arrived(calls, 2, 1, 2, is_new=True)  # the number was given to another program
    assert calls.missing(np.array([2])).tolist() == [1]
    arrived(calls, 500, 0, 10**30, is_new=True)
    assert calls.missing(np.array([500, 2])).tolist() == [MOST_CALLS - 1, 1]


def test_a_late_call_of_a_former_stage_says_nothing_of_the_present_one() -> None:
    calls = ProgramCalls()
    arrived(calls, 0, 1, 3, is_new=True)
    arrived(calls, 0, 0, 4)
    assert calls.missing(np.array([0])).tolist() == [2]
    arrived(calls, 0, 1, 3)
    arrived(calls, 0, 1, 3)
    assert calls.missing(np.array([0])).tolist() == [0]


def test_a_program_that_begins_again_begins_with_its_stage() -> None:
    """Nothing of it is in the engine any more: its first call is no late one."""
    calls = ProgramCalls()
    arrived(calls, 0, 3, 1, is_new=True)
    arrived(calls, 0, 0, 4, is_alone=True)
    assert calls.missing(np.array([0])).tolist() == [3]


def test_a_stage_that_is_asked_again_has_its_calls_still_to_come() -> None:
    calls = ProgramCalls()
    for attempt in range(2):
        arrived(calls, 0, 2, 3, is_new=attempt == 0, is_alone=True)
        assert calls.missing(np.array([0])).tolist() == [2]
        arrived(calls, 0, 2, 3)
        arrived(calls, 0, 2, 3)
        assert calls.missing(np.array([0])).tolist() == [0]


def test_calls_of_a_stage_that_come_one_by_one_are_no_new_ones() -> None:
    calls = ProgramCalls()
    missing = []
    for _ in range(3):  # each has ended before the next
        arrived(calls, 0, 0, 3, is_new=not missing, is_alone=True)
        missing.append(calls.missing(np.array([0])).tolist())
    assert missing == [[2], [1], [0]]


def test_what_ended_is_kept_until_the_number_is_another_s() -> None:
    calls = ProgramCalls()
    arrived(calls, 1, 0, 1, is_new=True)
    calls.ended(1, 30)
    arrived(calls, 1, 1, 1)
    calls.ended(1, 12)
    assert calls.ended_tokens(np.array([1, 0])).tolist() == [42.0, 0.0]
    arrived(calls, 1, 0, 1, is_new=True)
    assert calls.ended_tokens(np.array([1])).tolist() == [0.0]


class Looked(dict[int, float]):
    """Counts how many of its keys were looked at."""

    num_looked = 0

    def __iter__(self) -> Iterator[int]:
        for key in super().__iter__():
            self.num_looked += 1
            yield key

    def items(self) -> NoReturn:  # type: ignore[override]
        raise AssertionError("a copy of them all")


def test_a_new_name_looks_at_few_of_the_names_that_ended_lately() -> None:
    """However many there are: it happens at every arrival."""
    accounts = ServiceCounters()
    accounts._closed_s = looked = Looked()
    for number in range(3 * _PRUNE_ABOVE):
        accounts.close(accounts.open(f"alone {number}", float(number) / 1000), float(number) / 1000)
    assert looked.num_looked <= 3 * _PRUNE_ABOVE
    accounts.open("late", FORGET_AFTER_S + 5.0)
    assert len(accounts._number) < 3 * _PRUNE_ABOVE


def test_a_clock_that_is_set_back_stands_still() -> None:
    accounts = ServiceCounters(memory_s=10.0)
    number = accounts.open("a", 1e6)
    accounts.add(np.array([number]), np.array([5.0]), 1e6)
    assert accounts.tokens(np.array([number]), 0.0).tolist() == [5.0]

"""Arrivals: in how many seconds what came lately did come, as a policy is told."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest

from serving.engine.observers.arrivals import LEAST_S, MOST, SILENCE, WINDOWS_S, Arrivals
from serving.requests import BEST_EFFORT, COMPOUND, DEADLINE, LATENCY, new_columns

WINDOW_S, LONGEST_S = WINDOWS_S[0], WINDOWS_S[-1]


class Told(NamedTuple):
    """How many are shown, the seconds in which they came, and of how many they tell."""

    shown: int
    seconds: float
    counted: float


def noted(
    arrivals: Arrivals, *times_s: float, kind: int = DEADLINE, allowed_s: float = 20.0
) -> Arrivals:
    columns = new_columns(1)
    columns["kind"][0] = kind
    for time_s in times_s:
        columns["arrival_s"][0], columns["final_s"][0] = time_s, time_s + allowed_s
        arrivals.note(columns, 0)
    return arrivals


def told(arrivals: Arrivals, now_s: float) -> Told:
    shown, seconds, counts = arrivals.since(now_s)
    assert counts.shape == (len(shown),)
    return Told(len(shown), seconds, float(counts.sum()))


def told_s(*times_s: float, now_s: float) -> tuple[int, float]:
    found = told(noted(Arrivals(), *times_s), now_s)
    assert found.counted == found.shown
    return found[:2]


def test_without_arrivals_there_is_no_rate_to_divide_by_zero_for() -> None:
    assert told_s(now_s=0.0) == (0, LEAST_S)
    assert told_s(1.0, now_s=500.0) == (0, WINDOW_S)


def test_a_burst_at_the_start_is_not_the_rate_of_all_that_follows() -> None:
    assert told_s(*[100.0] * 60, now_s=100.0) == (60, LEAST_S)
    assert told_s(*[100.0] * 60, now_s=101.0) == (60, 60 * 1.0 / SILENCE)


def test_a_burst_that_is_over_is_spread_over_the_window_and_no_more() -> None:
    assert told_s(*[100.0] * 60, now_s=110.0) == (60, WINDOW_S)
    assert told_s(*[100.0] * 60, now_s=159.0) == (60, WINDOW_S)


def test_arrivals_that_go_on_come_in_the_time_since_the_first() -> None:
    steady = [0.25 * number for number in range(400)]
    assert told_s(*steady[:120], now_s=30.0) == (120, 30.0)
    shown, seconds = told_s(*steady, now_s=100.0)
    assert shown == pytest.approx(240, abs=1)
    assert seconds == WINDOW_S


def test_of_too_many_arrivals_the_latest_are_told_and_the_time_that_they_took() -> None:
    steady = [0.01 * number for number in range(3000)]
    assert told_s(*steady, now_s=30.0) == (MOST, pytest.approx(0.01 * MOST))


@pytest.mark.parametrize(
    ("allowed_s", "window_s"),
    [(20.0, 60.0), (119.0, 60.0), (120.0, 120.0), (400.0, 240.0), (480.0, 480.0), (1e6, 480.0)],
)
def test_what_may_take_long_is_told_of_for_as_long_at_the_same_rate(
    allowed_s: float, window_s: float
) -> None:
    steady = [2.0 * number for number in range(1000)]
    found = told(noted(Arrivals(), *steady, allowed_s=allowed_s), now_s=1999.0)
    assert found.shown == window_s / 2
    assert found.counted / found.seconds == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("kind", "allowed_s"),
    [(LATENCY, 900.0), (BEST_EFFORT, math.inf), (DEADLINE, 60.0), (COMPOUND, 60.0)],
)
def test_what_is_due_soon_or_never_is_told_of_for_a_minute(kind: int, allowed_s: float) -> None:
    arrivals = noted(Arrivals(), 0.0, kind=kind, allowed_s=allowed_s)
    assert told(arrivals, now_s=59.0).shown == 1
    assert told(arrivals, now_s=61.0).shown == 0


def test_a_pile_due_in_hours_is_over_though_calls_due_soon_go_on() -> None:
    """And presses the machine no more than in the time that it may take."""
    arrivals = noted(Arrivals(), *[100.0] * 300, kind=COMPOUND, allowed_s=7200.0)
    noted(arrivals, *[100.0 + number for number in range(60)])
    found = told(arrivals, now_s=160.0)
    assert (found.shown, found.seconds) == (359, 60.0)
    assert found.counted == pytest.approx(59 + 300 * 60.0 / LONGEST_S)


def test_an_engine_that_began_just_now_knows_no_longer_time() -> None:
    arrivals = noted(Arrivals(), *[2.0 * number for number in range(40)], allowed_s=900.0)
    found = told(arrivals, now_s=79.0)
    assert found.counted / found.seconds == pytest.approx(40 / 79.0)

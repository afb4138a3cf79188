"""Arrivals: in how many seconds what came lately did come, as a policy is told."""

from __future__ import annotations

import pytest

from serving.engine.arrivals import LEAST_S, MOST, SILENCE, WINDOW_S, Arrivals
from serving.requests import new_columns


def told_s(*times_s: float, now_s: float) -> tuple[int, float]:
    """How many are shown, and the seconds in which they came."""
    arrivals, columns = Arrivals(), new_columns(1)
    for time_s in times_s:
        columns["arrival_s"][0] = time_s
        arrivals.note(columns, 0)
    shown, seconds = arrivals.since(now_s)
    return len(shown), seconds


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

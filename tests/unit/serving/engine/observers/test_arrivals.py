"""Arrivals: the windows of recent arrivals, their lengths and their weights."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest

from serving.engine.observers.arrivals import (
    MAX_ARRIVALS,
    MAX_MISSED_ARRIVALS,
    MIN_WINDOW_S,
    WINDOWS_S,
    Arrivals,
)
from serving.requests import BEST_EFFORT, COMPOUND, DEADLINE, LATENCY, new_columns

WINDOW_S, LONGEST_S = WINDOWS_S[0], WINDOWS_S[-1]


class Recent(NamedTuple):
    """Number of recent arrivals, length of the first window in seconds, and sum of the weights."""

    num_arrivals: int
    seconds: float
    weight: float


def add(
    arrivals: Arrivals, *times_s: float, kind: int = DEADLINE, allowed_s: float = 20.0
) -> Arrivals:
    columns = new_columns(1)
    columns["kind"][0] = kind
    for time_s in times_s:
        columns["arrival_s"][0], columns["final_s"][0] = time_s, time_s + allowed_s
        arrivals.add(columns, 0)
    return arrivals


def recent(arrivals: Arrivals, now_s: float) -> Recent:
    requests, seconds, weights = arrivals.recent(now_s)
    assert weights.shape == (len(requests),)
    return Recent(len(requests), seconds, float(weights.sum()))


def recent_of(*times_s: float, now_s: float) -> tuple[int, float]:
    """Number of recent arrivals and length of the window, for arrivals at these times."""
    result = recent(add(Arrivals(), *times_s), now_s)
    assert result.weight == result.num_arrivals
    return result[:2]


def test_without_arrivals_the_window_is_not_empty() -> None:
    assert recent_of(now_s=0.0) == (0, MIN_WINDOW_S)
    assert recent_of(1.0, now_s=500.0) == (0, WINDOW_S)


def test_a_burst_at_the_start_is_spread_over_the_least_window() -> None:
    assert recent_of(*[100.0] * 60, now_s=100.0) == (60, MIN_WINDOW_S)
    assert recent_of(*[100.0] * 60, now_s=101.0) == (60, 60 * 1.0 / MAX_MISSED_ARRIVALS)


def test_a_burst_that_is_over_is_spread_over_the_whole_window_and_no_more() -> None:
    assert recent_of(*[100.0] * 60, now_s=110.0) == (60, WINDOW_S)
    assert recent_of(*[100.0] * 60, now_s=159.0) == (60, WINDOW_S)


def test_the_window_of_steady_arrivals_begins_at_the_first_arrival() -> None:
    steady = [0.25 * number for number in range(400)]
    assert recent_of(*steady[:120], now_s=30.0) == (120, 30.0)
    num_arrivals, seconds = recent_of(*steady, now_s=100.0)
    assert num_arrivals == pytest.approx(240, abs=1)
    assert seconds == WINDOW_S


def test_of_too_many_arrivals_the_latest_are_kept_and_the_window_is_shortened() -> None:
    steady = [0.01 * number for number in range(3000)]
    assert recent_of(*steady, now_s=30.0) == (MAX_ARRIVALS, pytest.approx(0.01 * MAX_ARRIVALS))


@pytest.mark.parametrize(
    ("allowed_s", "window_s"),
    [(20.0, 60.0), (119.0, 60.0), (120.0, 120.0), (400.0, 240.0), (480.0, 480.0), (1e6, 480.0)],
)
def test_arrivals_with_a_late_deadline_have_a_long_window_and_the_same_rate(
    allowed_s: float, window_s: float
) -> None:
    steady = [2.0 * number for number in range(1000)]
    result = recent(add(Arrivals(), *steady, allowed_s=allowed_s), now_s=1999.0)
    assert result.num_arrivals == window_s / 2
    assert result.weight / result.seconds == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("kind", "allowed_s"),
    [(LATENCY, 900.0), (BEST_EFFORT, math.inf), (DEADLINE, 60.0), (COMPOUND, 60.0)],
)
def test_streams_and_requests_with_an_early_or_no_deadline_have_the_first_window(
    kind: int, allowed_s: float
) -> None:
    arrivals = add(Arrivals(), 0.0, kind=kind, allowed_s=allowed_s)
    assert recent(arrivals, now_s=59.0).num_arrivals == 1
    assert recent(arrivals, now_s=61.0).num_arrivals == 0


def test_a_burst_with_late_deadlines_is_over_although_other_arrivals_continue() -> None:
    """It is spread over the longest window."""
    arrivals = add(Arrivals(), *[100.0] * 300, kind=COMPOUND, allowed_s=7200.0)
    add(arrivals, *[100.0 + number for number in range(60)])
    result = recent(arrivals, now_s=160.0)
    assert (result.num_arrivals, result.seconds) == (359, 60.0)
    assert result.weight == pytest.approx(59 + 300 * 60.0 / LONGEST_S)


def test_windows_of_a_new_engine_are_no_longer_than_its_time() -> None:
    arrivals = add(Arrivals(), *[2.0 * number for number in range(40)], allowed_s=900.0)
    result = recent(arrivals, now_s=79.0)
    assert result.weight / result.seconds == pytest.approx(40 / 79.0)

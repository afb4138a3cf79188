"""StepTimer: the measured speed of steps, free of idle time and of prefill."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.engine.tracker import INITIAL_PREFILL_TOKEN_S, INITIAL_TOKEN_S, StepTimer
from tests.strategies import law


def run(timer: StepTimer, start_s: float, seconds: list[float], **composition: int) -> float:
    """Steps of these durations, of this composition; the time at which the last one ended."""
    now_s = start_s
    for duration_s in seconds:
        timer.step(now_s, **{"decode_tokens": 0, "prefill_tokens": 0} | composition)
        now_s += duration_s
    return now_s


def close(timer: StepTimer, now_s: float) -> None:
    """A step without work ends the last one."""
    timer.step(now_s, decode_tokens=0, prefill_tokens=0)


@law
@given(st.lists(st.floats(0.001, 10.0), min_size=1, max_size=50))
def test_the_token_time_stays_among_the_measured_ones(seconds: list[float]) -> None:
    timer = StepTimer()
    close(timer, run(timer, 0.0, seconds, decode_tokens=4))
    assert min(seconds) * (1 - 1e-6) <= timer.token_s <= max(seconds) * (1 + 1e-6)


def test_the_first_measurement_replaces_the_guess() -> None:
    timer = StepTimer()
    assert timer.token_s == INITIAL_TOKEN_S
    close(timer, run(timer, 0.0, [3.0], decode_tokens=1))
    assert timer.token_s == 3.0


def test_after_a_change_of_speed_the_estimate_follows() -> None:
    timer = StepTimer()
    now_s = run(timer, 0.0, [1.0] * 5, decode_tokens=1)
    close(timer, run(timer, now_s, [2.0] * 60, decode_tokens=1))
    assert timer.token_s == pytest.approx(2.0, rel=0.01)


@law
@given(st.floats(0, 1e6))
def test_idle_time_is_no_steps_time(idle_s: float) -> None:
    timer = StepTimer()
    now_s = run(timer, 0.0, [1.0] * 3, decode_tokens=1)
    timer.idle()
    close(timer, run(timer, now_s + idle_s, [1.0] * 3, decode_tokens=1))
    assert timer.token_s == pytest.approx(1.0)


def test_steps_without_work_are_not_measured() -> None:
    timer = StepTimer()
    now_s = run(timer, 0.0, [1.0] * 3, decode_tokens=1)
    now_s = run(timer, now_s, [50.0] * 3)
    close(timer, run(timer, now_s, [1.0], decode_tokens=1))
    assert timer.token_s == pytest.approx(1.0)


def test_prefill_has_a_price_of_its_own() -> None:
    timer = StepTimer()
    now_s = run(timer, 0.0, [1.0], decode_tokens=1)
    close(timer, run(timer, now_s, [3.0] * 100, decode_tokens=1, prefill_tokens=200))
    assert timer.token_s == 1.0
    assert timer.prefill_token_s == pytest.approx(0.01, rel=0.01)


@law
@given(st.lists(st.floats(-5.0, 0.0), max_size=5))
def test_a_clock_that_stands_still_or_runs_back_teaches_nothing(seconds: list[float]) -> None:
    timer = StepTimer()
    close(timer, run(timer, 0.0, seconds, decode_tokens=1))
    assert (timer.token_s, timer.prefill_token_s) == (INITIAL_TOKEN_S, INITIAL_PREFILL_TOKEN_S)
    close(timer, run(timer, 0.0, seconds, prefill_tokens=9))
    assert timer.prefill_token_s == INITIAL_PREFILL_TOKEN_S

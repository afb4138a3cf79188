"""Arrival processes: within the window, ascending, at the given rate."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.sim.workloads.arrivals import ARRIVALS, burst, gamma, poisson, rescaled
from serving.workload_errors import InvalidWorkload
from tests.strategies import law

names = st.sampled_from(sorted(ARRIVALS))
seeds = st.integers(0, 2**32)
rates = st.floats(0.01, 50)
windows = st.floats(0.01, 50)


@law
@given(names, seeds, rates, windows)
def test_arrivals_ascend_within_the_window(
    name: str, seed: int, rate_per_s: float, window_s: float
) -> None:
    times = ARRIVALS[name](np.random.default_rng(seed), rate_per_s=rate_per_s, window_s=window_s)
    assert (np.diff(times) >= 0).all()
    assert ((times >= 0) & (times < window_s)).all()


@law
@given(names, seeds)
def test_the_same_seed_gives_the_same_arrivals(name: str, seed: int) -> None:
    first, second = (
        ARRIVALS[name](np.random.default_rng(seed), rate_per_s=3.0, window_s=20.0) for _ in range(2)
    )
    assert first.tobytes() == second.tobytes()


@pytest.mark.parametrize("variation", [0.2, 1.0, 2.0, 4.0])
def test_gamma_gaps_have_the_given_variation_and_mean_rate(variation: float) -> None:
    times = gamma(np.random.default_rng(1), rate_per_s=10.0, window_s=20_000.0, variation=variation)
    gaps = np.diff(times)
    assert gaps.std() / gaps.mean() == pytest.approx(variation, rel=0.03)
    assert len(times) == pytest.approx(200_000, rel=5 * variation / math.sqrt(200_000))


def test_the_mean_rate_holds_in_short_windows() -> None:
    rng = np.random.default_rng(2)
    counts = [len(gamma(rng, rate_per_s=1.0, window_s=3.0, variation=2.0)) for _ in range(20_000)]
    assert np.mean(counts) == pytest.approx(3.0, abs=4 * np.std(counts) / math.sqrt(20_000))


def test_a_burst_has_the_given_factor_and_the_mean_rate_holds() -> None:
    times = burst(
        np.random.default_rng(3),
        rate_per_s=20.0,
        window_s=10_000.0,
        factor=5.0,
        start=0.4,
        length=0.1,
    )
    within = ((times >= 4000) & (times < 5000)).sum() / 1000
    outside = ((times < 4000) | (times >= 5000)).sum() / 9000
    assert within / outside == pytest.approx(5.0, rel=0.05)
    assert len(times) == pytest.approx(200_000, rel=0.02)


time_lists = st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=50).filter(
    lambda times: max(times) - min(times) > 1e-3
)


@law
@given(time_lists, rates)
def test_a_rescaled_trace_keeps_its_shape_and_has_the_rate(
    times: list[float], rate_per_s: float
) -> None:
    scaled = rescaled(times, rate_per_s=rate_per_s)
    assert len(scaled) == len(times)
    assert scaled[0] == 0.0
    assert (len(times) - 1) / scaled[-1] == pytest.approx(rate_per_s)
    shape = (np.sort(times) - min(times)) / (max(times) - min(times))
    assert scaled / scaled[-1] == pytest.approx(shape, abs=1e-9)


def test_a_trace_that_ends_before_the_window_is_rejected() -> None:
    assert rescaled([0, 1, 3], rate_per_s=1.0, window_s=1.5).tolist() == pytest.approx([0, 2 / 3])
    with pytest.raises(InvalidWorkload, match=r"last only 2\.0 s"):
        rescaled([0, 1, 3], rate_per_s=1.0, window_s=3.0)


@pytest.mark.parametrize("times", [[], [1.0], [2.0, 2.0], [0.0, math.nan], [0.0, math.inf]])
def test_a_trace_without_two_different_finite_times_is_rejected(times: list[float]) -> None:
    with pytest.raises(InvalidWorkload, match="two different"):
        rescaled(times, rate_per_s=1.0)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_rates_and_windows_must_be_finite_and_above_0(value: float) -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(InvalidWorkload, match="rate_per_s"):
        poisson(rng, rate_per_s=value, window_s=1.0)
    with pytest.raises(InvalidWorkload, match="window_s"):
        poisson(rng, rate_per_s=1.0, window_s=value)
    with pytest.raises(InvalidWorkload, match="variation"):
        gamma(rng, rate_per_s=1.0, window_s=1.0, variation=value)
    with pytest.raises(InvalidWorkload, match="rate_per_s"):
        rescaled([0.0, 1.0], rate_per_s=value)


def test_a_burst_that_is_not_within_the_window_is_rejected() -> None:
    with pytest.raises(InvalidWorkload, match="within the window"):
        burst(np.random.default_rng(0), rate_per_s=1.0, window_s=1.0, start=0.95, length=0.1)

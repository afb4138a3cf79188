"""Arrival processes: seeded random arrival times within [0, window_s)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from serving.workload_errors import InvalidWorkload

Times = NDArray[np.float64]
"""Shape (n,): ascending seconds within [0, window_s)."""

GAMMA_VARIATION = 2.0
"""Coefficient of variation of the gaps of "gamma"; a Poisson process has 1."""

BURST_FACTOR = 5.0
"""Rate of "burst" within its burst / its rate outside.

Source: Wu (2025), section 2.2 (load variations of up to 5x within minutes).
"""

DAY_FACTOR = 4.0
"""Rate of "day" at its rush / its rate at its calmest.

The busiest hour of the conversation service in Azure's LLM inference trace of May 2024 has about
3.6 times the requests of its quietest one; those of the code service differ far more.
"""

DAY_CYCLES = 2
"""Rushes of "day" in one window."""

_DAY_POINTS = 4096  # of the interpolation; rates change by at most 0.3% from one to the next


class Arrivals(Protocol):
    """A random process of arrivals with a mean rate."""

    def __call__(self, rng: np.random.Generator, *, rate_per_s: float, window_s: float) -> Times:
        """Draw the arrivals of one window."""


def poisson(rng: np.random.Generator, *, rate_per_s: float, window_s: float) -> Times:
    """A Poisson process: independent arrivals.

    Raises:
        InvalidWorkload: the rate or the window is not a finite number above 0.
    """
    return gamma(rng, rate_per_s=rate_per_s, window_s=window_s, variation=1.0)


def gamma(
    rng: np.random.Generator, *, rate_per_s: float, window_s: float, variation: float
) -> Times:
    """Arrivals with independent Gamma-distributed gaps.

    The process is stationary at time 0, so that the mean rate is exact: the first arrival is the
    end of a gap that covers time 0, which is a longer gap than average.

    Args:
        variation: coefficient of variation of the gaps; 1 is Poisson, more is clustered.
    Raises:
        InvalidWorkload: a value is not a finite number above 0.
    """
    _check(rate_per_s=rate_per_s, window_s=window_s, variation=variation)
    shape = variation**-2
    scale = 1.0 / (rate_per_s * shape)
    last = float(rng.gamma(shape + 1.0, scale) * rng.random())
    times = [np.array([last])]
    while last < window_s:
        gaps = rng.gamma(shape, scale, int((window_s - last) * rate_per_s) + 16)
        times.append(last + np.cumsum(gaps))
        last = float(times[-1][-1])
    return _within(np.concatenate(times), window_s)


def burst(
    rng: np.random.Generator,
    *,
    rate_per_s: float,
    window_s: float,
    factor: float = BURST_FACTOR,
    start: float = 0.4,
    length: float = 0.1,
) -> Times:
    """Poisson arrivals with `factor` times the rate during one part of the window.

    The mean rate over the whole window is `rate_per_s`.

    Args:
        factor: above 0; below 1 the rate drops instead.
        start, length: start and length of the burst, as shares of the window.
    Raises:
        InvalidWorkload: a value is out of range.
    """
    _check(rate_per_s=rate_per_s, window_s=window_s, factor=factor, length=length)
    if not 0.0 <= start <= 1.0 - length:
        raise InvalidWorkload("start", start, "the burst must be within the window")
    base_rate = 1.0 / (1.0 + (factor - 1.0) * length)  # relative to the mean rate
    uniform = poisson(rng, rate_per_s=rate_per_s, window_s=window_s) / window_s
    # Map each share of the arrivals to the share of the window in which they have arrived.
    shares = (0.0, base_rate * start, base_rate * (start + factor * length), 1.0)
    times: Times = np.interp(uniform, shares, (0.0, start, start + length, 1.0)) * window_s
    return _within(times, window_s)


def day(
    rng: np.random.Generator,
    *,
    rate_per_s: float,
    window_s: float,
    factor: float = DAY_FACTOR,
    cycles: int = DAY_CYCLES,
) -> Times:
    """Poisson arrivals at a rate that swings smoothly between calm and rush, as over days.

    The rate is a cosine that begins and ends at its calmest; its mean over the window is
    `rate_per_s`.

    Args:
        factor: highest rate / lowest rate, at least 1.
        cycles: rushes in the window, at least 1.
    Raises:
        InvalidWorkload: a value is out of range.
    """
    _check(rate_per_s=rate_per_s, window_s=window_s, factor=factor)
    if factor < 1.0:
        raise InvalidWorkload("factor", factor, "must be at least 1")
    if cycles < 1:
        raise InvalidWorkload("cycles", cycles, "must be at least 1")
    swing = (factor - 1.0) / (factor + 1.0)
    places = np.linspace(0.0, 1.0, cycles * _DAY_POINTS + 1)
    angles = 2.0 * math.pi * cycles * places
    shares = places - swing * np.sin(angles) / (2.0 * math.pi * cycles)  # have arrived by then
    uniform = poisson(rng, rate_per_s=rate_per_s, window_s=window_s) / window_s
    times: Times = np.interp(uniform, shares, places) * window_s
    return _within(times, window_s)


def rescaled(
    timestamps_s: Sequence[float], *, rate_per_s: float, window_s: float | None = None
) -> Times:
    """A trace's own arrivals, scaled in time to this mean rate.

    Args:
        timestamps_s: at least two different times, in any order; the first becomes 0.
        window_s: only arrivals before it; None: all.
    Raises:
        InvalidWorkload: a value is out of range, or the trace is too short for the window.
    """
    _check(rate_per_s=rate_per_s, window_s=1.0 if window_s is None else window_s)
    times: Times = np.sort(np.asarray(timestamps_s, dtype=np.float64))
    if len(times) < 2 or not np.isfinite(times).all() or times[0] == times[-1]:
        reason = "rescaling arrivals needs at least two different, finite times"
        raise InvalidWorkload("timestamps_s", f"{len(times)} times", reason)
    span_s = float(times[-1] - times[0])
    times -= times[0]
    times *= (len(times) - 1) / rate_per_s / span_s
    if window_s is None:
        return times
    if times[-1] < window_s * (1.0 - 1e-9):
        reason = f"at {rate_per_s}/s the trace's {len(times)} arrivals last only {times[-1]:.1f} s"
        raise InvalidWorkload("window_s", window_s, reason)
    return _within(times, window_s)


def _gamma(rng: np.random.Generator, *, rate_per_s: float, window_s: float) -> Times:
    return gamma(rng, rate_per_s=rate_per_s, window_s=window_s, variation=GAMMA_VARIATION)


ARRIVALS: Mapping[str, Arrivals] = MappingProxyType(
    {"poisson": poisson, "gamma": _gamma, "burst": burst, "day": day}
)
"""Arrival processes by name."""

IN_A_WINDOW = ("burst", "day")
"""The processes with a shape that belongs to one window."""


def _within(times: Times, window_s: float) -> Times:
    return times[: np.searchsorted(times, window_s)]


def _check(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise InvalidWorkload(name, value, "must be a finite number above 0")

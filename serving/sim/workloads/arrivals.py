"""When programs arrive: ascending seconds within [0, window_s), as seeded random processes."""

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
"""How much higher the rate of "burst" is in its burst.

Source: Wu (2025), section 2.2 (load variations of up to 5x within minutes).
"""


class Arrivals(Protocol):
    """A random process of arrivals with a mean rate."""

    def __call__(self, rng: np.random.Generator, *, rate_per_s: float, window_s: float) -> Times:
        """The arrivals of one window."""


def poisson(rng: np.random.Generator, *, rate_per_s: float, window_s: float) -> Times:
    """Arrivals that know nothing of each other.

    Raises:
        InvalidWorkload: a rate or a window is not a finite number above 0.
    """
    return gamma(rng, rate_per_s=rate_per_s, window_s=window_s, variation=1.0)


def gamma(
    rng: np.random.Generator, *, rate_per_s: float, window_s: float, variation: float
) -> Times:
    """Arrivals with independent Gamma-distributed gaps.

    The process has run since long before the window: the first arrival is the end of a gap that
    covers time 0 (a longer gap does so more often), so that the mean rate is exact.

    Args:
        variation: coefficient of variation of the gaps; 1 is Poisson, more comes in clusters.
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
    """Poisson arrivals, `factor` times as many a second during one part of the window.

    The mean rate over the whole window is `rate_per_s`.

    Args:
        factor: above 0; below 1 it is a lull.
        start, length: of the burst, as shares of the window; both within it.
    Raises:
        InvalidWorkload: a value is out of range.
    """
    _check(rate_per_s=rate_per_s, window_s=window_s, factor=factor, length=length)
    if not 0.0 <= start <= 1.0 - length:
        raise InvalidWorkload("start", start, "the burst must lie within the window")
    calm_rate = 1.0 / (1.0 + (factor - 1.0) * length)  # with the mean rate as its unit
    work = poisson(rng, rate_per_s=rate_per_s, window_s=window_s) / window_s
    # Time runs faster in the burst: a share of the arrivals -> the share of the window by then.
    shares = (0.0, calm_rate * start, calm_rate * (start + factor * length), 1.0)
    times: Times = np.interp(work, shares, (0.0, start, start + length, 1.0)) * window_s
    return _within(times, window_s)


def rescaled(
    timestamps_s: Sequence[float], *, rate_per_s: float, window_s: float | None = None
) -> Times:
    """A trace's own arrivals, its clock sped up or slowed down until they have this mean rate.

    Args:
        timestamps_s: at least two different times, in any order; the first becomes 0.
        window_s: only those before; None: all.
    Raises:
        InvalidWorkload: a value is out of range, or the trace is too short for the window.
    """
    _check(rate_per_s=rate_per_s, window_s=1.0 if window_s is None else window_s)
    times: Times = np.sort(np.asarray(timestamps_s, dtype=np.float64))
    if len(times) < 2 or not np.isfinite(times).all() or times[0] == times[-1]:
        told = "shaping arrivals needs at least two different, finite times"
        raise InvalidWorkload("timestamps_s", f"{len(times)} times", told)
    span_s = float(times[-1] - times[0])
    times -= times[0]
    times *= (len(times) - 1) / rate_per_s / span_s
    if window_s is None:
        return times
    if times[-1] < window_s * (1.0 - 1e-9):
        told = f"at {rate_per_s}/s the trace's {len(times)} arrivals last {times[-1]:.1f} s only"
        raise InvalidWorkload("window_s", window_s, told)
    return _within(times, window_s)


def _gamma(rng: np.random.Generator, *, rate_per_s: float, window_s: float) -> Times:
    return gamma(rng, rate_per_s=rate_per_s, window_s=window_s, variation=GAMMA_VARIATION)


ARRIVALS: Mapping[str, Arrivals] = MappingProxyType(
    {"poisson": poisson, "gamma": _gamma, "burst": burst}
)
"""Arrival processes by name."""


def _within(times: Times, window_s: float) -> Times:
    return times[: np.searchsorted(times, window_s)]


def _check(**values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise InvalidWorkload(name, value, "must be a finite number above 0")

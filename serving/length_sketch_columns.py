"""The bounds of many length sketches at once, as NumPy arrays: a row each."""

from __future__ import annotations

import math
from bisect import bisect_right

import numpy as np
from numpy.typing import NDArray

from serving.length_sketch import (
    LAST_SURVIVAL,
    LENGTH_LEVELS,
    LEVELS_FROM_0,
    LONGEST_TOKENS,
    NUM_LEVELS,
    TAIL_WIDTHS,
    check_level,
)


def upper_tokens(
    quantiles: NDArray[np.float64], level: float, *, generated: NDArray[np.int64]
) -> NDArray[np.float64]:
    """LengthSketch.upper of many sketches at once.

    Args:
        quantiles: (n, levels), a sketch's tokens in each row; NaN for a row without a sketch.
        generated: (n,), at least 0.
    Returns:
        (n,): NaN for a row without a sketch.
    Raises:
        ValueError: a level outside (0, 1).
    """
    check_level(level)
    bounds = _unstarted_upper(quantiles, level)
    started = np.flatnonzero((generated > 0) | (quantiles[:, 0] <= 0.0))
    if len(started):
        bounds[started] = _started_upper(
            quantiles[started], level, generated[started].astype(np.float64)
        )
    return bounds


def _unstarted_upper(quantiles: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """The bounds before the first token: the quantiles at the level itself."""
    index = bisect_right(LENGTH_LEVELS, level)
    if index == NUM_LEVELS:
        bounds = quantiles[:, -1] + _tails(quantiles, (1.0 - level) / LAST_SURVIVAL)
    else:
        share = (level - LEVELS_FROM_0[index]) / (LENGTH_LEVELS[index] - LEVELS_FROM_0[index])
        low_tokens = quantiles[:, index - 1] if index else 0.0
        bounds = low_tokens + share * (quantiles[:, index] - low_tokens)
    bounded: NDArray[np.float64] = np.clip(bounds, 1.0, LONGEST_TOKENS)
    return bounded


def _started_upper(
    quantiles: NDArray[np.float64], level: float, generated: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The bounds of answers with some tokens: the formula of LengthSketch.upper, on columns."""
    rows = np.arange(len(quantiles))
    padded = np.concatenate([np.zeros((len(quantiles), 1)), quantiles], axis=1)
    levels = np.array((*LEVELS_FROM_0, 1.0))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        index = (quantiles <= generated[:, None]).sum(axis=1)
        beyond = index == NUM_LEVELS
        low = np.where(beyond, 0, index)
        low_tokens = padded[rows, low]
        width = padded[rows, low + 1] - low_tokens
        reached = levels[low] + (generated - low_tokens) / width * (levels[low + 1] - levels[low])
        target = reached + level * (1.0 - reached)
        index = np.searchsorted(LENGTH_LEVELS, target, side="right")
        in_tail = index == NUM_LEVELS
        low = np.where(in_tail, 0, index)
        low_tokens = padded[rows, low]
        share = (target - levels[low]) / (levels[low + 1] - levels[low])
        bounds = low_tokens + share * (padded[rows, low + 1] - low_tokens)
        survival = np.where(beyond, 1.0 - level, (1.0 - level) * (1.0 - reached) / LAST_SURVIVAL)
        tails = _tails(quantiles, survival)
        bounds = np.where(in_tail, quantiles[:, -1] + tails, bounds)
        bounds = np.where(beyond, generated + tails, bounds)
    bounds[np.isnan(quantiles[:, 0])] = math.nan
    bounded: NDArray[np.float64] = np.maximum(np.minimum(bounds, LONGEST_TOKENS), generated + 1.0)
    return bounded


def _tails(
    quantiles: NDArray[np.float64], survival: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    width = quantiles[:, -1] - quantiles[:, -2]
    decay = np.maximum(-np.log(np.minimum(survival, 1.0)), 0.0)
    tails: NDArray[np.float64] = np.minimum(width / TAIL_WIDTHS * decay, LONGEST_TOKENS)
    return tails

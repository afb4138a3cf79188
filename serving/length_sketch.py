"""LengthSketch: the distribution of an answer's output length, conditioned on its progress."""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LENGTH_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""The probability levels of the quantiles in a sketch, lowest first."""

_LEVELS = (0.0, *LENGTH_LEVELS)
_NUM_LEVELS = len(LENGTH_LEVELS)
_LAST_SURVIVAL = 1.0 - LENGTH_LEVELS[-1]
_TAIL_WIDTHS = math.log((1.0 - LENGTH_LEVELS[-2]) / _LAST_SURVIVAL)
_LONGEST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class LengthSketch:
    """Quantiles of one answer's output length, in tokens, at LENGTH_LEVELS.

    The distribution is uniform between neighbouring quantiles, and from 0 to the first. Above the
    last it decays exponentially, at the rate between the last two; if those are equal (an atom,
    most often at max_tokens) there is no tail. The sketch does not know limits such as max_tokens:
    callers apply them to its bounds.

    Raises:
        ValueError: a number of quantiles other than that of levels, or quantiles that are
            negative, not finite or not ascending.
    Source: Wu (2025), section 4.1 (upper bounds refined as generation progresses).
    """

    tokens: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != _NUM_LEVELS:
            raise ValueError(f"a sketch has {_NUM_LEVELS} quantiles, not {len(self.tokens)}")
        if not all(math.isfinite(value) and value >= 0 for value in self.tokens):
            raise ValueError("quantiles must be finite and at least 0")
        if any(left > right for left, right in zip(self.tokens, self.tokens[1:], strict=False)):
            raise ValueError("quantiles must ascend")

    @classmethod
    def of(cls, lengths: Sequence[float]) -> LengthSketch:
        """The sketch of observed output lengths, in tokens: linear between order statistics.

        Raises ValueError if there is no length, or if a length is negative or not finite.
        """
        if not lengths:
            raise ValueError("a sketch needs at least one length")
        ordered = sorted(map(float, lengths))
        last = len(ordered) - 1
        tokens = []
        for level in LENGTH_LEVELS:
            rank = level * last
            lower = int(rank)
            left, right = ordered[lower], ordered[min(lower + 1, last)]
            tokens.append(min(left + (rank - lower) * (right - left), right))
        return cls(tuple(tokens))

    def upper(self, level: float, *, generated: int = 0) -> float:
        """The `level` quantile of the length, given that it exceeds `generated` tokens.

        At least `generated` + 1, always finite, and ascending in both arguments. Raises ValueError
        for a level outside (0, 1).
        """
        _check_level(level)
        tokens = self.tokens
        least = generated + 1.0
        index = bisect_right(tokens, generated)
        if index == _NUM_LEVELS:
            return max(generated + self._tail(1.0 - level), least)
        low = _LEVELS[index]
        low_tokens = tokens[index - 1] if index else 0.0
        width = tokens[index] - low_tokens  # above 0: `generated` is below this quantile
        reached = low + (generated - low_tokens) / width * (LENGTH_LEVELS[index] - low)
        target = reached + level * (1.0 - reached)
        index = bisect_right(LENGTH_LEVELS, target)
        if index == _NUM_LEVELS:
            survival = (1.0 - level) * (1.0 - reached) / _LAST_SURVIVAL
            bound = min(tokens[-1] + self._tail(survival), _LONGEST)
        else:
            low = _LEVELS[index]
            low_tokens = tokens[index - 1] if index else 0.0
            share = (target - low) / (LENGTH_LEVELS[index] - low)
            bound = low_tokens + share * (tokens[index] - low_tokens)
        return bound if bound > least else least

    def _tail(self, survival: float) -> float:
        """Offset from the last quantile, in tokens, that this share of the tail exceeds."""
        width = self.tokens[-1] - self.tokens[-2]
        if width <= 0.0 or survival >= 1.0:
            return 0.0
        return min(width / _TAIL_WIDTHS * -math.log(survival), _LONGEST)


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
    _check_level(level)
    bounds = _unstarted_upper(quantiles, level)
    started = np.flatnonzero((generated > 0) | (quantiles[:, 0] <= 0.0))
    if len(started):
        bounds[started] = _started_upper(
            quantiles[started], level, generated[started].astype(np.float64)
        )
    return bounds


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be within (0, 1), not {level}")


def _unstarted_upper(quantiles: NDArray[np.float64], level: float) -> NDArray[np.float64]:
    """The bounds before the first token: the quantiles at the level itself."""
    index = bisect_right(LENGTH_LEVELS, level)
    if index == _NUM_LEVELS:
        bounds = quantiles[:, -1] + _tails(quantiles, (1.0 - level) / _LAST_SURVIVAL)
    else:
        share = (level - _LEVELS[index]) / (LENGTH_LEVELS[index] - _LEVELS[index])
        low_tokens = quantiles[:, index - 1] if index else 0.0
        bounds = low_tokens + share * (quantiles[:, index] - low_tokens)
    bounded: NDArray[np.float64] = np.clip(bounds, 1.0, _LONGEST)
    return bounded


def _started_upper(
    quantiles: NDArray[np.float64], level: float, generated: NDArray[np.float64]
) -> NDArray[np.float64]:
    """The bounds of answers with some tokens: the formula of LengthSketch.upper, on columns."""
    rows = np.arange(len(quantiles))
    padded = np.concatenate([np.zeros((len(quantiles), 1)), quantiles], axis=1)
    levels = np.array((*_LEVELS, 1.0))
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        index = (quantiles <= generated[:, None]).sum(axis=1)
        beyond = index == _NUM_LEVELS
        low = np.where(beyond, 0, index)
        low_tokens = padded[rows, low]
        width = padded[rows, low + 1] - low_tokens
        reached = levels[low] + (generated - low_tokens) / width * (levels[low + 1] - levels[low])
        target = reached + level * (1.0 - reached)
        index = np.searchsorted(LENGTH_LEVELS, target, side="right")
        in_tail = index == _NUM_LEVELS
        low = np.where(in_tail, 0, index)
        low_tokens = padded[rows, low]
        share = (target - levels[low]) / (levels[low + 1] - levels[low])
        bounds = low_tokens + share * (padded[rows, low + 1] - low_tokens)
        survival = np.where(beyond, 1.0 - level, (1.0 - level) * (1.0 - reached) / _LAST_SURVIVAL)
        tails = _tails(quantiles, survival)
        bounds = np.where(in_tail, quantiles[:, -1] + tails, bounds)
        bounds = np.where(beyond, generated + tails, bounds)
    bounds[np.isnan(quantiles[:, 0])] = math.nan
    bounded: NDArray[np.float64] = np.maximum(np.minimum(bounds, _LONGEST), generated + 1.0)
    return bounded


def _tails(
    quantiles: NDArray[np.float64], survival: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    width = quantiles[:, -1] - quantiles[:, -2]
    decay = np.maximum(-np.log(np.minimum(survival, 1.0)), 0.0)
    tails: NDArray[np.float64] = np.minimum(width / _TAIL_WIDTHS * decay, _LONGEST)
    return tails

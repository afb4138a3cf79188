"""LengthSketch: the distribution of an answer's output length, conditioned on its progress."""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

LENGTH_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""The probability levels of the quantiles in a sketch, lowest first."""

LEVELS_FROM_0 = (0.0, *LENGTH_LEVELS)
NUM_LEVELS = len(LENGTH_LEVELS)

LAST_SURVIVAL = 1.0 - LENGTH_LEVELS[-1]
"""The share of answers that are longer than the last quantile."""

TAIL_WIDTHS = math.log((1.0 - LENGTH_LEVELS[-2]) / LAST_SURVIVAL)
"""The width between the last two quantiles, in mean lengths of the exponential tail."""

LONGEST_TOKENS = sys.float_info.max
"""No bound is above this, so that all bounds are finite."""


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
        if len(self.tokens) != NUM_LEVELS:
            raise ValueError(f"a sketch has {NUM_LEVELS} quantiles, not {len(self.tokens)}")
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
        check_level(level)
        tokens = self.tokens
        least = generated + 1.0
        index = bisect_right(tokens, generated)
        if index == NUM_LEVELS:
            return max(generated + self._tail(1.0 - level), least)
        low = LEVELS_FROM_0[index]
        low_tokens = tokens[index - 1] if index else 0.0
        width = tokens[index] - low_tokens  # above 0: `generated` is below this quantile
        reached = low + (generated - low_tokens) / width * (LENGTH_LEVELS[index] - low)
        target = reached + level * (1.0 - reached)
        index = bisect_right(LENGTH_LEVELS, target)
        if index == NUM_LEVELS:
            survival = (1.0 - level) * (1.0 - reached) / LAST_SURVIVAL
            bound = min(tokens[-1] + self._tail(survival), LONGEST_TOKENS)
        else:
            low = LEVELS_FROM_0[index]
            low_tokens = tokens[index - 1] if index else 0.0
            share = (target - low) / (LENGTH_LEVELS[index] - low)
            bound = low_tokens + share * (tokens[index] - low_tokens)
        return bound if bound > least else least

    def _tail(self, survival: float) -> float:
        """Offset from the last quantile, in tokens, that this share of the tail exceeds."""
        width = self.tokens[-1] - self.tokens[-2]
        if width <= 0.0 or survival >= 1.0:
            return 0.0
        return min(width / TAIL_WIDTHS * -math.log(survival), LONGEST_TOKENS)


def check_level(level: float) -> None:
    """Raise ValueError for a probability level outside (0, 1)."""
    if not 0.0 < level < 1.0:
        raise ValueError(f"level must be within (0, 1), not {level}")

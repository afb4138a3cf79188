"""LengthSketch: how many tokens an answer may have, and how that changes while it grows."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

LENGTH_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""The probabilities whose quantiles a sketch carries, lowest first."""


@dataclass(frozen=True, slots=True)
class LengthSketch:
    """Quantiles of one answer's output length, in tokens, at LENGTH_LEVELS.

    Between two quantiles the distribution is taken as uniform; below the first it starts at 0,
    and above the last nothing is known, so the last one stands for the tail.

    Raises:
        ValueError: not one quantile a level, negative, not finite, or not ascending.
    Source: Wu (2025), section 4.1 (upper bounds refined as generation progresses).
    """

    tokens: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.tokens) != len(LENGTH_LEVELS):
            raise ValueError(f"a sketch has {len(LENGTH_LEVELS)} quantiles, not {len(self.tokens)}")
        if not all(math.isfinite(value) and value >= 0 for value in self.tokens):
            raise ValueError("quantiles must be finite and at least 0")
        if any(left > right for left, right in zip(self.tokens, self.tokens[1:], strict=False)):
            raise ValueError("quantiles must ascend")

    def upper(self, level: float, *, generated: int = 0) -> float:
        """The length not exceeded with this probability, given that more than `generated` came.

        Never below `generated` + 1. Raises ValueError for a level outside (0, 1).
        """
        if not 0 < level < 1:
            raise ValueError(f"level must be within (0, 1), not {level}")
        reached = self._probability(generated)
        bound = self._quantile(reached + level * (1 - reached))
        return max(bound, generated + 1.0)

    def _probability(self, length: float) -> float:
        """The probability of at most this length."""
        index = bisect_right(self.tokens, length)
        if index == len(self.tokens):
            return LENGTH_LEVELS[-1]
        low_tokens, low = (self.tokens[index - 1], LENGTH_LEVELS[index - 1]) if index else (0, 0)
        width = self.tokens[index] - low_tokens
        share = (length - low_tokens) / width if width > 0 else 0.0
        return low + share * (LENGTH_LEVELS[index] - low)

    def _quantile(self, probability: float) -> float:
        index = bisect_right(LENGTH_LEVELS, probability)
        if index == len(LENGTH_LEVELS):
            return self.tokens[-1]
        low_tokens, low = (self.tokens[index - 1], LENGTH_LEVELS[index - 1]) if index else (0, 0)
        share = (probability - low) / (LENGTH_LEVELS[index] - low)
        return low_tokens + share * (self.tokens[index] - low_tokens)

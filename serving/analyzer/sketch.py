"""LengthSketch: how many tokens an answer may have, and how that changes while it grows."""

from __future__ import annotations

import math
import sys
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

LENGTH_LEVELS = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99)
"""The probabilities whose quantiles a sketch carries, lowest first."""

_LEVELS = (0.0, *LENGTH_LEVELS)
_NUM_LEVELS = len(LENGTH_LEVELS)
_LAST_SURVIVAL = 1.0 - LENGTH_LEVELS[-1]
_TAIL_WIDTHS = math.log((1.0 - LENGTH_LEVELS[-2]) / _LAST_SURVIVAL)
_LONGEST = sys.float_info.max


@dataclass(frozen=True, slots=True)
class LengthSketch:
    """Quantiles of one answer's output length, in tokens, at LENGTH_LEVELS.

    Between two quantiles the distribution is taken as uniform; below the first it starts at 0.
    Above the last it decays exponentially, as fast as between the last two: where those are equal
    (an atom, most often max_tokens) there is no tail. A limit such as max_tokens is not known
    here; who knows it cuts the bound.

    Raises:
        ValueError: not one quantile a level, negative, not finite, or not ascending.
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

        Raises ValueError without any length, or for one that is negative or not finite.
        """
        if not lengths:
            raise ValueError("a sketch needs at least one length")
        ordered = sorted(map(float, lengths))
        last = len(ordered) - 1
        tokens = []
        for level in LENGTH_LEVELS:
            rank = level * last
            low = int(rank)
            left, right = ordered[low], ordered[min(low + 1, last)]
            tokens.append(min(left + (rank - low) * (right - left), right))
        return cls(tuple(tokens))

    def upper(self, level: float, *, generated: int = 0) -> float:
        """The length not exceeded with this probability, given that more than `generated` came.

        Never below `generated` + 1, always finite, and ascending in both arguments. Raises
        ValueError for a level outside (0, 1).
        """
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must be within (0, 1), not {level}")
        tokens = self.tokens
        least = generated + 1.0
        index = bisect_right(tokens, generated)
        if index == _NUM_LEVELS:
            return max(generated + self._tail(1.0 - level), least)
        low = _LEVELS[index]
        low_tokens = tokens[index - 1] if index else 0.0
        width = tokens[index] - low_tokens  # above 0: `generated` lies below this quantile
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
        """How far beyond the last quantile this share of what exceeds it still goes, in tokens."""
        width = self.tokens[-1] - self.tokens[-2]
        if width <= 0.0 or survival >= 1.0:
            return 0.0
        return min(width / _TAIL_WIDTHS * -math.log(survival), _LONGEST)

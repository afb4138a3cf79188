"""LengthDistribution: a weighted set of output lengths, its quantiles and extrapolation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


class LengthDistribution:
    """A weighted set of output lengths and its quantile function, linear between neighbours.

    The quantile function is that of quantile-forest and of `numpy.quantile`: length i of n in
    ascending order, each repeated by its weight, has level i / (n - 1). Levels outside 0 to 1 are
    extrapolated geometrically, so that a calibration can give bounds beyond all seen lengths:
    1 + quantile(1 + x) = exp(x) * (1 + longest), 1 + quantile(-x) = exp(-x) * (1 + shortest).

    Args:
        scaled: shape (n,), log(1 + tokens), strictly ascending.
        counts: shape (n,), the weight of each, an integer of at least 1.
    """

    __slots__ = ("_below", "_last", "_scaled")

    def __init__(self, scaled: NDArray[np.float64], counts: NDArray[np.int64]) -> None:
        self._scaled = scaled
        self._below = np.cumsum(counts)
        self._last = int(self._below[-1]) - 1

    @classmethod
    def of(cls, ordered: Sequence[int]) -> LengthDistribution:
        """The distribution of these lengths, in tokens, shortest first; at least one."""
        lengths, counts = np.unique(np.asarray(ordered, dtype=np.float64), return_counts=True)
        return cls(np.log1p(lengths), counts)

    def quantiles(self, levels: Sequence[float]) -> NDArray[np.float64]:
        """Tokens at these levels, which may be any finite numbers; shape (len(levels),)."""
        asked = np.asarray(levels, dtype=np.float64)
        inside = np.clip(asked, 0.0, 1.0)
        ranks = inside * self._last
        lows = np.floor(ranks)
        left = self._scaled[np.searchsorted(self._below, lows, side="right")]
        highs = np.minimum(lows + 1.0, self._last)
        right = self._scaled[np.searchsorted(self._below, highs, side="right")]
        tokens = np.expm1(left + (ranks - lows) * (right - left) + asked - inside)
        # Rounding errors must not turn a bound of 1024 into 1023.9999999.
        rounded: NDArray[np.float64] = np.round(np.maximum(tokens, 0.0), 6)
        return rounded

    def level(self, tokens: float) -> float:
        """The lowest level with a quantile of at least this length: the inverse of `quantiles`.

        For an atom that is the probability of shorter lengths. So an answer that ends at max_tokens
        counts as covered by the bounds that reach max_tokens, and by no other.
        """
        scaled = float(np.log1p(tokens))
        index = int(np.searchsorted(self._scaled, scaled, side="left"))
        if index == len(self._scaled):
            return 1.0 + scaled - float(self._scaled[-1])
        if index == 0:
            return min(0.0, scaled - float(self._scaled[0]))
        high, low = float(self._scaled[index]), float(self._scaled[index - 1])
        return (int(self._below[index - 1]) - 1 + (scaled - low) / (high - low)) / self._last

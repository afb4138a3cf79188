"""Calibration: maps the levels of a sketch to levels of a prediction with the right coverage."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from functools import cache

from serving.length_sketch import LENGTH_LEVELS

BOUND_LEVEL = 0.9
"""The level at which coverage is monitored, and at which policies bound lengths."""

BOUND_INDEX = LENGTH_LEVELS.index(BOUND_LEVEL)
"""The index of BOUND_LEVEL in a sketch."""

WINDOW_SCORES = 500
"""Number of newest scores that are kept: the 0.99 level needs a hundred, and the calibration must
follow a drift within hundreds of calls."""

MIN_SCORES = 30
"""With fewer scores the levels of a prediction are not remapped."""

WATCHED_CALLS = 150
"""Number of newest calls that are tested for a shift of coverage; at least MIN_SCORES."""

KEPT_SCORES = 50
"""Number of newest scores that are kept after a shift: enough for a 0.9 level of their own."""

SHIFT_PROBABILITY = 1e-5
"""A coverage at most this probable, for right levels and independent calls, is a shift.

It is small because calls of one run are not independent: their misses are clustered."""

STEADY_CALLS = 25
"""After n calls without a shift, the next one changes the log of the risk by at most
1 / sqrt(STEADY_CALLS + n)."""

MAX_CAUTION = 1.5
"""The risk changes at most by a factor of exp(1.5)."""


class Calibration:
    """Maps the levels of a sketch to levels of a prediction, by the outcomes of past predictions.

    A score is the lowest level at which a prediction would have covered the true length
    (`LengthDistribution.level`). Three mechanisms keep the coverage of a level right, the fastest
    last:

    - Split conformal prediction: level p of a sketch is the prediction's level that covers the
      share p of the scores in the window. It holds for any prediction, biased or not, while calls
      are exchangeable.
    - A shift: if the number of newest calls within their bounds is too low, or the number below
      them too high, for a binomial distribution, only the newest scores are kept.
    - Adaptive conformal inference: the risk 1 - p shrinks with every miss and grows a ninth as much
      with every covered call, so that clustered misses do not add up.

    Source: Vovk et al. (2005), inductive conformal prediction; Gibbs and Candes (2021), adaptive
    conformal inference; Angelopoulos et al. (2024), the same with decaying steps.
    """

    def __init__(self, scores: Iterable[float] = ()) -> None:
        self._recent: deque[float] = deque()
        self._ordered: list[float] = []
        self._covered: deque[tuple[bool, bool]] = deque(maxlen=WATCHED_CALLS)
        self._caution = 0.0  # log of how much smaller the risk is than a level says
        self._num_steady = 0
        self._levels: tuple[float, ...] | None = None
        for score in scores:
            self.remember(score)

    @property
    def num_scores(self) -> int:
        """Number of scores in the window."""
        return len(self._recent)

    @property
    def levels(self) -> tuple[float, ...]:
        """The prediction levels for LENGTH_LEVELS; ascending, some may be outside 0 to 1."""
        if self._levels is None:
            self._levels = tuple(map(self._remapped, LENGTH_LEVELS))
        return self._levels

    def remember(self, score: float) -> None:
        """Add the score of a past prediction without testing its bound."""
        assert math.isfinite(score), "a score is a level"
        if len(self._recent) == WINDOW_SCORES:
            self._forget()
        self._recent.append(score)
        insort(self._ordered, score)
        self._levels = None

    def observe(self, score: float, *, bound: float, truth: float) -> bool:
        """Add the outcome of a call; returns whether that was recognised as a shift.

        Args:
            score: the level of its true length in its prediction.
            bound: tokens of its sketch at BOUND_LEVEL.
            truth: its true output tokens.
        """
        self.remember(score)
        covered = truth <= bound
        step = 1.0 / math.sqrt(STEADY_CALLS + self._num_steady)
        caution = self._caution + step * ((not covered) - (1.0 - BOUND_LEVEL))
        self._caution = max(-MAX_CAUTION, min(caution, MAX_CAUTION))
        self._num_steady += 1
        # A truth equal to the bound (an atom) leaves no room for a lower bound: it is not loose.
        self._covered.append((covered, truth < bound))
        if len(self._covered) >= MIN_SCORES:
            fewest, most = _plausible(len(self._covered))
            num_covered, num_inside = map(sum, zip(*self._covered, strict=True))
            if num_covered < fewest or num_inside > most:
                self._forget_all_but(KEPT_SCORES)
                return True
        return False

    def _forget_all_but(self, num_kept: int) -> None:
        while len(self._recent) > num_kept:
            self._forget()
        self._covered.clear()
        self._caution = 0.0
        self._num_steady = 0

    def _forget(self) -> None:
        del self._ordered[bisect_left(self._ordered, self._recent.popleft())]

    def _remapped(self, level: float) -> float:
        """The lowest level that covers this share of the scores and of one future call.

        With too few scores for that: the highest score, or the level itself if that is higher.
        """
        num = len(self._ordered)
        if num < MIN_SCORES:
            return level
        level = max(1.0 - (1.0 - level) * math.exp(-self._caution), 0.0)
        rank = math.ceil((num + 1) * level)
        if rank > num:
            return max(self._ordered[-1], level)
        return self._ordered[max(rank, 1) - 1]


@cache
def _plausible(num: int) -> tuple[int, int]:
    """The lowest and the highest number of covered calls that is not a shift."""
    chances = [
        math.comb(num, covers) * BOUND_LEVEL**covers * (1.0 - BOUND_LEVEL) ** (num - covers)
        for covers in range(num + 1)
    ]
    fewest, most = 0, num
    while sum(chances[: fewest + 1]) < SHIFT_PROBABILITY / 2:
        fewest += 1
    while sum(chances[most:]) < SHIFT_PROBABILITY / 2:
        most -= 1
    return fewest, most

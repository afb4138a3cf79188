"""Calibration: which level of a forecast covers as often as a level promises."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterable
from functools import cache

from serving.length_sketch import LENGTH_LEVELS

BOUND_LEVEL = 0.9
"""The level whose coverage is watched: the one that policies bound lengths with."""

BOUND_INDEX = LENGTH_LEVELS.index(BOUND_LEVEL)
"""Its place in a sketch."""

WINDOW_SCORES = 500
"""Scores remembered: the 0.99 level needs a hundred, and a drift must not take thousands."""

MIN_SCORES = 30
"""With fewer scores a forecast's levels are taken at their word."""

WATCHED_CALLS = 150
"""Newest calls whose coverage is tested for a shift, from MIN_SCORES on."""

KEPT_SCORES = 50
"""Newest scores that survive a shift: enough for a 0.9 level of their own."""

SHIFT_PROBABILITY = 1e-5
"""A coverage as odd as this, were the levels right and the calls independent, is a shift.

So small because calls of one run are not: their misses come in clusters."""

STEADY_CALLS = 25
"""After n calls without a shift, the next one moves the log of the risk by 1 / sqrt(25 + n)."""

MAX_CAUTION = 1.5
"""The risk never moves further than by a factor of exp(1.5)."""


class Calibration:
    """Maps the levels of a sketch to the levels of a forecast, from how past forecasts fared.

    A score is the level at which a forecast would just have covered the truth
    (`LengthDistribution.level`). Three things keep coverage at what a level says, fast ones last:

    - Split conformal: level p of a sketch is the forecast's level that covers the share p of the
      scores in the window. It holds for any forecast, biased or not, while calls are alike.
    - A shift: where too few of the newest calls were within their bounds, or too many below them,
      for a binomial distribution, only the newest scores are kept.
    - Adaptive conformal inference: the risk 1 - p shrinks with every miss and grows a ninth as much
      with every cover, so that misses that come in clusters do not add up.

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
        """How many scores are remembered."""
        return len(self._recent)

    @property
    def levels(self) -> tuple[float, ...]:
        """The forecast's levels that stand for LENGTH_LEVELS; ascending, some beyond 0 and 1."""
        if self._levels is None:
            self._levels = tuple(map(self._remapped, LENGTH_LEVELS))
        return self._levels

    def remember(self, score: float) -> None:
        """A score of the past, of a forecast whose bound nobody used."""
        assert math.isfinite(score), "a score is a level"
        if len(self._recent) == WINDOW_SCORES:
            self._forget()
        self._recent.append(score)
        insort(self._ordered, score)
        self._levels = None

    def observe(self, score: float, *, bound: float, truth: float) -> bool:
        """A call ended; whether that was taken for a shift.

        Args:
            bound: tokens that its sketch gave at BOUND_LEVEL.
            truth: tokens that it had.
        """
        self.remember(score)
        covered = truth <= bound
        step = 1.0 / math.sqrt(STEADY_CALLS + self._num_steady)
        caution = self._caution + step * ((not covered) - (1.0 - BOUND_LEVEL))
        self._caution = max(-MAX_CAUTION, min(caution, MAX_CAUTION))
        self._num_steady += 1
        # On an atom (truth equal to bound) no lower bound would do: no sign of a loose one.
        self._covered.append((covered, truth < bound))
        if len(self._covered) >= MIN_SCORES:
            fewest, most = _plausible(len(self._covered))
            num_covered, num_inside = map(sum, zip(*self._covered, strict=True))
            if num_covered < fewest or num_inside > most:
                self._forget_all_but(KEPT_SCORES)
                return True
        return False

    def _forget_all_but(self, kept: int) -> None:
        while len(self._recent) > kept:
            self._forget()
        self._covered.clear()
        self._caution = 0.0
        self._num_steady = 0

    def _forget(self) -> None:
        del self._ordered[bisect_left(self._ordered, self._recent.popleft())]

    def _remapped(self, level: float) -> float:
        """The lowest level that covers this share of the scores, counting one call to come.

        Where there are too few scores to say, the highest of them, or the level itself if that
        is higher.
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
    """The fewest and the most covers of this many calls that are no sign of a shift."""
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

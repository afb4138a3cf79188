"""StepCalibrations: one for every step, leaning on that of all steps while it is young."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from serving.analyzer.calibration import MIN_SCORES, Calibration

MAX_STEPS = 1024
"""Steps calibrated on their own; beyond, the one that ended longest ago leans on all again."""

LEANING_SCORES = 60
"""A step's own levels weigh n / (n + 60) once it has n scores, MIN_SCORES or more."""


class Score(NamedTuple):
    """The level at which a forecast would just have covered the truth, and whose it was."""

    step: int  # features.step_code
    level: float


class StepCalibrations:
    """Calibrations by step.

    Coverage that is right over all calls can be wrong for each step: too much for the one, too
    little for the other, and a policy bounds single calls. So each step has a calibration of its
    own (a Mondrian one), blended with the common one as long as it has seen few calls.

    Source: Vovk et al. (2005), Mondrian conformal prediction.
    """

    def __init__(self, scores: Iterable[Score] = ()) -> None:
        self._common = Calibration()
        self._steps: OrderedDict[int, Calibration] = OrderedDict()
        self._num_shifts = 0
        for score in scores:
            self._common.remember(score.level)
            self._of(score.step).remember(score.level)

    @property
    def num_shifts(self) -> int:
        """How often coverage, of one step or of all, was so odd that old scores were dropped."""
        return self._num_shifts

    def levels(self, step: int) -> tuple[float, ...]:
        """The forecast's levels that stand for LENGTH_LEVELS in this step; ascending."""
        common = self._common.levels
        own = self._steps.get(step)
        if own is None or own.num_scores < MIN_SCORES:
            return common
        weight = own.num_scores / (own.num_scores + LEANING_SCORES)
        pairs = zip(own.levels, common, strict=True)
        return tuple(other + weight * (mine - other) for mine, other in pairs)

    def observe(self, score: Score, *, bound: float, truth: float) -> None:
        """A call ended; `Calibration.observe` says what the arguments are."""
        for calibration in (self._common, self._of(score.step)):
            self._num_shifts += calibration.observe(score.level, bound=bound, truth=truth)

    def _of(self, step: int) -> Calibration:
        calibration = self._steps.get(step)
        if calibration is None:
            if len(self._steps) == MAX_STEPS:
                self._steps.popitem(last=False)
            calibration = self._steps[step] = Calibration()
        self._steps.move_to_end(step)
        return calibration

"""StepCalibrations: a calibration for each step, blended with a common one while it is new."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import NamedTuple

from serving.analyzer.calibration import MIN_SCORES, Calibration

MAX_STEPS = 1024
"""Limit on the steps with a calibration of their own; beyond, the one with the oldest last call is
forgotten."""

BLENDING_SCORES = 60
"""The levels of a step with n scores have the weight n / (n + BLENDING_SCORES), and none below
MIN_SCORES scores."""


class Score(NamedTuple):
    """The lowest level at which a prediction would have covered the true length."""

    step: int  # features.step_code
    level: float


class StepCalibrations:
    """Calibrations by step.

    A coverage that is right over all calls can be wrong for each step, too high for one and too low
    for another, and policies use bounds of single calls. So each step has its own (Mondrian)
    calibration, blended with the common one while it has few scores.

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
        """Number of shifts of coverage, of single steps and of all together, so far."""
        return self._num_shifts

    def levels(self, step: int) -> tuple[float, ...]:
        """The prediction levels for LENGTH_LEVELS in this step; ascending."""
        common = self._common.levels
        own = self._steps.get(step)
        if own is None or own.num_scores < MIN_SCORES:
            return common
        weight = own.num_scores / (own.num_scores + BLENDING_SCORES)
        pairs = zip(own.levels, common, strict=True)
        return tuple(shared + weight * (level - shared) for level, shared in pairs)

    def observe(self, score: Score, *, bound: float, truth: float) -> None:
        """Add the outcome of a call; see `Calibration.observe` for the arguments."""
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

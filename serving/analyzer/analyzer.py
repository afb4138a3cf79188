"""RequestAnalyzer: predicts the output length of LLM calls, and learns from each answer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

from serving.analyzer.calibration import BOUND_INDEX
from serving.analyzer.distribution import LengthDistribution
from serving.analyzer.features import CallFeatures, step_code
from serving.analyzer.fitted import FittedLengths
from serving.analyzer.history import StepHistories
from serving.analyzer.samples import Sample, replayed
from serving.analyzer.step_calibration import Score, StepCalibrations
from serving.length_sketch import LengthSketch

Source = Literal["limit", "step", "forest"]

MIN_STEP_CALLS = 10
"""Fewest answers of a step from which its lengths are predicted: with ten, the 0.9 quantile is
between the two longest."""


@dataclass(frozen=True, slots=True)
class _Prediction:
    """The uncalibrated prediction behind a sketch, kept until the true length is known."""

    distribution: LengthDistribution
    calibrations: StepCalibrations


@dataclass(frozen=True, slots=True)
class LengthEstimate:
    """The prediction for one call.

    Attributes:
        sketch: None without a prediction: only max_tokens, or the model's context, is a limit.
        source: "limit" (no sketch), "step" (the step's own recent answers), or "forest".
    """

    sketch: LengthSketch | None
    source: Source
    prediction: _Prediction | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class LengthReport:
    """Statistics of the estimates so far.

    Attributes:
        coverage: share of the calls with a sketch that ended within their bound at level 0.9; None
            before the first one.
        num_observed: calls that ended, with and without a sketch.
        num_sketched: calls that ended and had a sketch.
        num_shifts: how often an implausible coverage caused old scores to be discarded.
        sources: number of estimates by source.
    """

    coverage: float | None
    num_observed: int
    num_sketched: int
    num_shifts: int
    sources: Mapping[Source, int]


class RequestAnalyzer:
    """Estimates output lengths for one application, and learns from each answer.

    Predictions improve in stages: none, then from the step's own answers, then from a forest over
    all steps. Not thread-safe; every method takes well under a millisecond.

    Source: Wu (2025), section 4.1 (estimating response length upper bounds).
    """

    def __init__(self, model: FittedLengths | None = None) -> None:
        self._histories = StepHistories()
        self._step_calibrations = StepCalibrations()
        self._forest_calibrations = StepCalibrations()
        self._model: FittedLengths | None = None
        self._sources: Counter[Source] = Counter()
        self._num_observed = self._num_sketched = self._num_covered = self._num_shifts = 0
        if model is not None:
            self.adopt(model)

    @classmethod
    def replay(
        cls, samples: Sequence[Sample], model: FittedLengths | None = None
    ) -> RequestAnalyzer:
        """An analyzer in the state after these finished calls.

        Calls that the model was fitted on are only added to the history, because the model's
        calibration contains them. Later ones are estimated and observed as if live.
        """
        analyzer = cls(model)
        estimates: dict[int, LengthEstimate] = {}
        for index, has_ended in replayed(samples):
            sample = samples[index]
            if not has_ended:
                if model is None or sample.began_s > model.trained_until_s:
                    estimates[index] = analyzer.estimate(sample.features)
            elif index in estimates:
                analyzer.observe(sample.features, estimates.pop(index), sample.output_tokens)
            else:
                analyzer._histories.add(sample.features.identity, sample.output_tokens)
        return analyzer

    def adopt(self, model: FittedLengths) -> None:
        """Estimate with this model from now on; the histories of the steps stay."""
        self._num_shifts += self._forest_calibrations.num_shifts
        self._forest_calibrations = StepCalibrations(model.scores)
        self._model = model

    def estimate(self, features: CallFeatures) -> LengthEstimate:
        """The prediction for a call that is about to begin."""
        prediction, source = self._predict(features)
        self._sources[source] += 1
        if prediction is None:
            return LengthEstimate(None, source)
        levels = prediction.calibrations.levels(step_code(features.identity))
        tokens = prediction.distribution.quantiles(levels).tolist()
        if features.max_tokens is not None:
            tokens = [min(length, float(features.max_tokens)) for length in tokens]
        ascending = tuple(accumulate(tokens, max))  # rounding may break the order of equal levels
        return LengthEstimate(LengthSketch(ascending), source, prediction)

    def observe(self, features: CallFeatures, estimate: LengthEstimate, output_tokens: int) -> None:
        """Learn from a call that ended by itself or at max_tokens; aborted calls must not be given.

        Args:
            estimate: the result of `estimate` for this call.
            output_tokens: its true length.
        """
        self._histories.add(features.identity, output_tokens)
        self._num_observed += 1
        if estimate.sketch is None or estimate.prediction is None:
            return
        bound = estimate.sketch.tokens[BOUND_INDEX]
        self._num_sketched += 1
        self._num_covered += output_tokens <= bound
        level = estimate.prediction.distribution.level(output_tokens)
        score = Score(step_code(features.identity), level)
        estimate.prediction.calibrations.observe(score, bound=bound, truth=output_tokens)

    def report(self) -> LengthReport:
        """Statistics of the estimates so far."""
        shifts = self._step_calibrations.num_shifts + self._forest_calibrations.num_shifts
        return LengthReport(
            coverage=self._num_covered / self._num_sketched if self._num_sketched else None,
            num_observed=self._num_observed,
            num_sketched=self._num_sketched,
            num_shifts=self._num_shifts + shifts,
            sources=dict(self._sources),
        )

    def _predict(self, features: CallFeatures) -> tuple[_Prediction | None, Source]:
        history = self._histories.of(features.identity)
        if self._model is not None:
            distribution = self._model.forest.predict(features.vector(history))
            return _Prediction(distribution, self._forest_calibrations), "forest"
        if history.count >= MIN_STEP_CALLS:
            distribution = LengthDistribution.of(history.ordered)
            return _Prediction(distribution, self._step_calibrations), "step"
        return None, "limit"

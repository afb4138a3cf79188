"""RequestAnalyzer: how long will this answer be?"""

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
"""A step's own answers before they are a forecast: its 0.9 quantile lies among them, not above."""


@dataclass(frozen=True, slots=True)
class _Forecast:
    """What a sketch was made from, kept until the truth is known."""

    distribution: LengthDistribution
    calibrations: StepCalibrations


@dataclass(frozen=True, slots=True)
class LengthEstimate:
    """What is expected of one call.

    Attributes:
        sketch: None where nothing is known: max_tokens, or the model's limit, governs.
        source: "limit" (no sketch), "step" (the step's own recent answers), or "forest".
    """

    sketch: LengthSketch | None
    source: Source
    forecast: _Forecast | None = field(default=None, repr=False, compare=False)


@dataclass(frozen=True, slots=True)
class LengthReport:
    """How the estimates fared.

    Attributes:
        coverage: share of the sketched calls that ended within their bound at level 0.9; None
            before the first one.
        num_observed: calls that ended, with and without a sketch.
        num_sketched: those that had a sketch.
        num_shifts: how often coverage was so odd that old scores were thrown away.
        sources: estimates by source.
    """

    coverage: float | None
    num_observed: int
    num_sketched: int
    num_shifts: int
    sources: Mapping[Source, int]


class RequestAnalyzer:
    """Estimates output lengths for one application, and learns from each answer.

    What is known grows: nothing, then the step's own answers, then a forest over all steps. Not
    safe for threads; every method takes well under a millisecond.

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
        """The analyzer that would stand here had it seen these finished calls.

        Calls that the model was fitted on become history only, as its own calibration knows
        them; later ones are estimated and observed as if live.
        """
        analyzer = cls(model)
        estimates: dict[int, LengthEstimate] = {}
        for place, has_ended in replayed(samples):
            sample = samples[place]
            if not has_ended:
                if model is None or sample.began_s > model.trained_until_s:
                    estimates[place] = analyzer.estimate(sample.features)
            elif place in estimates:
                analyzer.observe(sample.features, estimates.pop(place), sample.output_tokens)
            else:
                analyzer._histories.add(sample.features.identity, sample.output_tokens)
        return analyzer

    def adopt(self, model: FittedLengths) -> None:
        """Estimate from this model from now on; what was learned of the steps stays."""
        self._num_shifts += self._forest_calibrations.num_shifts
        self._forest_calibrations = StepCalibrations(model.scores)
        self._model = model

    def estimate(self, features: CallFeatures) -> LengthEstimate:
        """What to expect of a call that is about to begin."""
        forecast, source = self._forecast(features)
        self._sources[source] += 1
        if forecast is None:
            return LengthEstimate(None, source)
        levels = forecast.calibrations.levels(step_code(features.identity))
        tokens = forecast.distribution.quantiles(levels).tolist()
        if features.max_tokens is not None:
            tokens = [min(length, float(features.max_tokens)) for length in tokens]
        ascending = tuple(accumulate(tokens, max))  # whatever rounding did to equal levels
        return LengthEstimate(LengthSketch(ascending), source, forecast)

    def observe(self, features: CallFeatures, estimate: LengthEstimate, output_tokens: int) -> None:
        """The call ended by itself or at max_tokens; one that was aborted teaches nothing."""
        self._histories.add(features.identity, output_tokens)
        self._num_observed += 1
        if estimate.sketch is None or estimate.forecast is None:
            return
        bound = estimate.sketch.tokens[BOUND_INDEX]
        self._num_sketched += 1
        self._num_covered += output_tokens <= bound
        level = estimate.forecast.distribution.level(output_tokens)
        score = Score(step_code(features.identity), level)
        estimate.forecast.calibrations.observe(score, bound=bound, truth=output_tokens)

    def report(self) -> LengthReport:
        """How the estimates fared so far."""
        shifts = self._step_calibrations.num_shifts + self._forest_calibrations.num_shifts
        return LengthReport(
            coverage=self._num_covered / self._num_sketched if self._num_sketched else None,
            num_observed=self._num_observed,
            num_sketched=self._num_sketched,
            num_shifts=self._num_shifts + shifts,
            sources=dict(self._sources),
        )

    def _forecast(self, features: CallFeatures) -> tuple[_Forecast | None, Source]:
        history = self._histories.of(features.identity)
        if self._model is not None:
            distribution = self._model.forest.predict(features.vector(history))
            return _Forecast(distribution, self._forest_calibrations), "forest"
        if history.count >= MIN_STEP_CALLS:
            distribution = LengthDistribution.of(history.ordered)
            return _Forecast(distribution, self._step_calibrations), "step"
        return None, "limit"

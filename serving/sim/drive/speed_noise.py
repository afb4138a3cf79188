"""A step cost with noise: the machine's speed varies, as if it were shared with others."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from serving.step_cost import Composition, StepTimeModel

DRIFT_S = 10.0
"""Correlation time of the drift: the autocorrelation falls to 1/e after it."""

DRIFT_DEVIATION = 0.25
"""Standard deviation of the logarithm of the drift's factor on step times."""

STEP_DEVIATION = 0.15
"""Standard deviation of the logarithm of each step's own factor."""

HICCUP_SHARE = 0.003
HICCUP_S = 0.15
"""A share of HICCUP_SHARE of the steps takes HICCUP_S longer. All five constants are assumed after
measurements on two shared cores: there step times differed from the best fit of their cost by 13 to
31% on average, and by more for several seconds in a row."""


class NoisyCost:
    """A step cost times the noise of the machine's speed.

    The drift depends on the time and the seed only, so it is the same for all policies. Its
    logarithm is a stationary Gaussian process with one value per second. On average over time the
    machine is as fast as the steady one, except for the hiccups.

    Args:
        clock: returns seconds; read at the start of a step.
        unsteadiness: factor on deviations and hiccups; above 0.
    """

    def __init__(
        self, cost: StepTimeModel, clock: Callable[[], float], *, unsteadiness: float, seed: int
    ) -> None:
        self._cost = cost
        self._clock = clock
        self._unsteadiness = unsteadiness
        drift_seed, step_seed = np.random.SeedSequence(seed).spawn(2)
        self._drift_rng = np.random.default_rng(drift_seed)
        self._step_rng = np.random.default_rng(step_seed)
        self._drift = [float(self._drift_rng.normal())]  # one value for each second so far

    def seconds(self, composition: Composition) -> float:
        """Seconds of one step that begins now."""
        steady_s = self._cost.seconds(composition)
        score, chance = float(self._step_rng.normal()), float(self._step_rng.random())
        drift_std = self._unsteadiness * DRIFT_DEVIATION
        step_std = self._unsteadiness * STEP_DEVIATION
        # The mean over time of the speed 1 / drift is 1, and the mean over steps of `own` is 1.
        drift = math.exp(drift_std * self._drift_at(self._clock()) + drift_std * drift_std / 2)
        own = math.exp(step_std * score - step_std * step_std / 2)
        hiccup_s = self._unsteadiness * HICCUP_S if chance < HICCUP_SHARE else 0.0
        return steady_s * drift * own + hiccup_s

    def _drift_at(self, now_s: float) -> float:
        """The drift's standard normal score in the current second (an AR(1) process)."""
        correlation = math.exp(-1.0 / DRIFT_S)  # of two consecutive seconds
        while len(self._drift) <= now_s:
            score = float(self._drift_rng.normal())
            innovation = math.sqrt(1.0 - correlation * correlation) * score
            self._drift.append(correlation * self._drift[-1] + innovation)
        return self._drift[int(now_s)]

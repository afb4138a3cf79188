"""A machine whose speed is not its own: the same step takes longer at one time than at another."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from serving.step_cost import Composition, StepTimeModel

DRIFT_S = 10.0
"""The speed of a machine is no longer what it was after about so long."""

DRIFT_DEVIATION = 0.25
"""Standard deviation of the logarithm of what drift multiplies steps with."""

STEP_DEVIATION = 0.15
"""The same of what each step has of its own."""

HICCUP_SHARE = 0.003
HICCUP_S = 0.15
"""So many of the steps take so much longer. All five are assumed after two shared cores, on which
steps missed the best fit of their cost by 13 to 31% in the mean, and by more for seconds on end."""


class NoisyCost:
    """A step cost times what the machine's speed happens to be.

    The drift is a function of the time and the seed alone, and so the same for all policies. It is
    a stationary Gaussian process in the logarithm, one value a second. In the mean over time the
    machine is as fast as the steady one, but for the hiccups.

    Args:
        clock: seconds; when a step begins.
        unsteadiness: what the deviations and hiccups are multiplied with; above 0.
    """

    def __init__(
        self, cost: StepTimeModel, clock: Callable[[], float], *, unsteadiness: float, seed: int
    ) -> None:
        self._cost = cost
        self._clock = clock
        self._unsteadiness = unsteadiness
        drift_seed, step_seed = np.random.SeedSequence(seed).spawn(2)
        self._of_drift = np.random.default_rng(drift_seed)
        self._of_steps = np.random.default_rng(step_seed)
        self._drift = [float(self._of_drift.normal())]  # one value for each second so far

    def seconds(self, composition: Composition) -> float:
        """Seconds of one step that begins now."""
        steady_s = self._cost.seconds(composition)
        own, chance = float(self._of_steps.normal()), float(self._of_steps.random())
        drifts, varies = self._unsteadiness * DRIFT_DEVIATION, self._unsteadiness * STEP_DEVIATION
        # Over time the speed is 1 in the mean, and at one speed the steps: hence the two signs.
        slower = math.exp(drifts * self._drift_at(self._clock()) + drifts * drifts / 2)
        longer = math.exp(varies * own - varies * varies / 2)
        hiccup_s = self._unsteadiness * HICCUP_S if chance < HICCUP_SHARE else 0.0
        return steady_s * slower * longer + hiccup_s

    def _drift_at(self, now_s: float) -> float:
        kept = math.exp(-1.0 / DRIFT_S)
        while len(self._drift) <= now_s:
            fresh = math.sqrt(1.0 - kept * kept) * float(self._of_drift.normal())
            self._drift.append(kept * self._drift[-1] + fresh)
        return self._drift[int(now_s)]

"""How far foretold lengths were off, so that a policy can correct those to come."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from serving.analyzer.sketch import LENGTH_LEVELS
from serving.slo import Slo

KEPT = 256
"""The latest answers that count."""

PRIOR_ANSWERS = 8
"""So many answers are taken to have been foretold truly before the first."""

_MEDIAN = LENGTH_LEVELS.index(0.5)


class LengthBias:
    """The median of true length over foretold median.

    Of answers that ended by themselves or at their limit.
    """

    def __init__(self) -> None:
        self._logs = deque([0.0] * PRIOR_ANSWERS, maxlen=KEPT)
        self._ratio: float | None = 1.0

    def ended(self, slo: Slo, output_tokens: int) -> None:
        """An answer is complete."""
        if slo.length is None or output_tokens < 1:
            return
        self._logs.append(math.log(output_tokens / max(slo.length.tokens[_MEDIAN], 1.0)))
        self._ratio = None

    @property
    def ratio(self) -> float:
        """What a foretold length is to be multiplied with."""
        if self._ratio is None:
            self._ratio = math.exp(float(np.median(np.array(self._logs))))
        return self._ratio

"""The ratio of true to predicted output lengths, so that a policy can correct predictions."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from serving.engine.observers.service_counters import INITIAL_ROWS, grown_to
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.requests import Floats, Ints

KEPT_ANSWERS = 256
"""Latest answers that a ratio is computed from: of a user, and of all users."""

PRIOR_ANSWERS = 8
"""Weight of the prior, in answers. The prior of a user is the ratio of all users; theirs is 1."""

MAX_SHARED_RATIO = 4.0
"""Limit on the ratio of all users, and on its inverse, because it also corrects new users."""

_MEDIAN = LENGTH_LEVELS.index(0.5)
_MAX_SHARED_LOG = math.log(MAX_SHARED_RATIO)


class LengthBias:
    """The median of true length / predicted median length over recent answers, by user number.

    Counts complete answers of requests with a predicted length.
    """

    def __init__(self) -> None:
        self._logs = deque([0.0] * PRIOR_ANSWERS, maxlen=KEPT_ANSWERS)
        self._ratio = 1.0
        self._own: dict[int, deque[float]] = {}
        self._own_ratio = np.full(INITIAL_ROWS, np.nan)

    def begin(self, user: int) -> None:
        """Forget what this number stood for: it belongs to a new user from now on."""
        self._own.pop(user, None)
        self._own_ratio = grown_to(self._own_ratio, user, fill=np.nan)
        self._own_ratio[user] = np.nan

    def ended(self, user: int, predicted: LengthSketch, output_tokens: int) -> None:
        """Count a complete answer to this user, of at least one token."""
        log = math.log(output_tokens / max(predicted.tokens[_MEDIAN], 1.0))
        self._logs.append(log)
        of_all = float(np.clip(np.median(self._logs), -_MAX_SHARED_LOG, _MAX_SHARED_LOG))
        self._ratio = math.exp(of_all)
        own = self._own.setdefault(user, deque(maxlen=KEPT_ANSWERS))
        own.append(log)
        self._own_ratio[user] = math.exp(float(np.median([*own, *[of_all] * PRIOR_ANSWERS])))

    def ratios(self, users: Ints) -> Floats:
        """The factor by which to correct lengths predicted for each of these users, (n,)."""
        own = self._own_ratio[users]
        return np.where(np.isnan(own), self._ratio, own)

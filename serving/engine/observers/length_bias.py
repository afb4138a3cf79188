"""The ratio of true to predicted output lengths, so that a policy can correct predictions."""

from __future__ import annotations

import math
from collections import deque
from typing import NamedTuple

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


class LengthBiasState(NamedTuple):
    """Logarithms of ratios of all users, and of each; the ratio of each user, NaN without one."""

    of_all: list[float]
    of_users: list[list[float]]
    ratios: list[float]


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
        of_all = self._log_of_all()
        self._ratio = math.exp(of_all)
        own = self._own.setdefault(user, deque(maxlen=KEPT_ANSWERS))
        own.append(log)
        self._own_ratio[user] = math.exp(float(np.median([*own, *[of_all] * PRIOR_ANSWERS])))

    def ratios(self, users: Ints) -> Floats:
        """The factor by which to correct lengths predicted for each of these users, (n,)."""
        own = self._own_ratio[users]
        return np.where(np.isnan(own), self._ratio, own)

    def state(self, users: Ints) -> LengthBiasState:
        """What was learned, of these users alone."""
        return LengthBiasState(
            list(self._logs),
            [list(self._own.get(user, ())) for user in users.tolist()],
            self._own_ratio[users].tolist(),
        )

    def restore(self, state: LengthBiasState) -> None:
        """Begin with what was learned; the users of the state are numbered from 0."""
        self._logs = deque(state.of_all, maxlen=KEPT_ANSWERS)
        self._ratio = math.exp(self._log_of_all())
        for user, (logs, ratio) in enumerate(zip(state.of_users, state.ratios, strict=True)):
            self.begin(user)
            if logs:
                self._own[user] = deque(logs, maxlen=KEPT_ANSWERS)
            self._own_ratio[user] = ratio

    def _log_of_all(self) -> float:
        return float(np.clip(np.median(self._logs), -_MAX_SHARED_LOG, _MAX_SHARED_LOG))

"""How far foretold lengths were off, so that a policy can correct those to come."""

from __future__ import annotations

import math
from collections import deque

import numpy as np

from serving.engine.observers.service_counters import ROOM, grown_to
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.requests import Floats, Ints

KEPT = 256
"""The latest answers that count."""

PRIOR_ANSWERS = 8
"""So many answers are taken to have been foretold truly before the first; of a user, to have been
as far off as those of all users."""

MOST_OF_OTHERS = 4.0
"""No user's lengths are multiplied or divided by more than this for how others' were foretold."""

_MEDIAN = LENGTH_LEVELS.index(0.5)
_MOST_LOG = math.log(MOST_OF_OTHERS)


class LengthBias:
    """The median of true length over foretold median, for each user, by the user's number.

    Of answers that ended by themselves or at their limit. Who has few of them is taken to be
    foretold as others are.
    """

    def __init__(self) -> None:
        self._logs = deque([0.0] * PRIOR_ANSWERS, maxlen=KEPT)
        self._ratio = 1.0
        self._own: dict[int, deque[float]] = {}
        self._own_ratio = np.full(ROOM, np.nan)

    def begin(self, user: int) -> None:
        """This number is a new user's; it comes before all else of that user."""
        self._own.pop(user, None)
        self._own_ratio = grown_to(self._own_ratio, user, fill=np.nan)
        self._own_ratio[user] = np.nan

    def ended(self, user: int, predicted: LengthSketch, output_tokens: int) -> None:
        """An answer to this user is complete, at least a token."""
        log = math.log(output_tokens / max(predicted.tokens[_MEDIAN], 1.0))
        self._logs.append(log)
        of_all = float(np.clip(np.median(self._logs), -_MOST_LOG, _MOST_LOG))
        self._ratio = math.exp(of_all)
        own = self._own.setdefault(user, deque(maxlen=KEPT))
        own.append(log)
        self._own_ratio[user] = math.exp(float(np.median([*own, *[of_all] * PRIOR_ANSWERS])))

    def ratios(self, users: Ints) -> Floats:
        """What a length foretold for each of these users is to be multiplied with: (n,)."""
        own = self._own_ratio[users]
        return np.where(np.isnan(own), self._ratio, own)

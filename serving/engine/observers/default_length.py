"""How long answers are of which no length was foretold, so that nobody takes max_tokens for it."""

from __future__ import annotations

from collections import deque

import numpy as np

from serving.engine.observers.service_counters import ROOM, grown_to
from serving.length_sketch import LENGTH_LEVELS
from serving.requests import Floats, Ints

KEPT = 256
"""A user's latest answers that count for that user."""

FEWEST_OWN = 8
"""A user with fewer answers than this is taken to be answered as all are. As many of each user's
latest tell how all are answered: nobody's count for more than another's."""

MOST_USERS = 64
"""So many, who had answers lately, tell how all are answered."""


class DefaultLength:
    """Quantiles of output lengths, for each user, by the user's number; 0 before the first answer.

    Of answers without a sketch that ended by themselves or at their limit.
    """

    def __init__(self) -> None:
        self._latest: dict[int, deque[int]] = {}  # of each user, who had the last answer last
        self._of_all: Floats = np.zeros(len(LENGTH_LEVELS))
        self._own: dict[int, deque[int]] = {}
        self._own_quantiles = np.full((ROOM, len(LENGTH_LEVELS)), np.nan)

    def begin(self, user: int) -> None:
        """This number is a new user's; it comes before all else of that user."""
        self._own.pop(user, None)
        self._latest.pop(user, None)
        self._own_quantiles = grown_to(self._own_quantiles, user, fill=np.nan)
        self._own_quantiles[user] = np.nan

    def ended(self, user: int, output_tokens: int) -> None:
        """An answer to this user is complete that carried no sketch."""
        latest = self._latest.pop(user, None) or deque(maxlen=FEWEST_OWN)
        latest.append(output_tokens)
        self._latest[user] = latest
        if len(self._latest) > MOST_USERS:
            del self._latest[next(iter(self._latest))]
        lengths = [length for each in self._latest.values() for length in each]
        self._of_all = np.asarray(np.quantile(lengths, LENGTH_LEVELS), np.float64)
        own = self._own.setdefault(user, deque(maxlen=KEPT))
        own.append(output_tokens)
        if len(own) >= FEWEST_OWN:
            self._own_quantiles[user] = np.quantile(own, LENGTH_LEVELS)

    def lengths(self, users: Ints) -> Floats:
        """What to expect of each of these users' answers: (n, levels)."""
        own = self._own_quantiles[users]
        return np.where(np.isnan(own), self._of_all, own)

"""How long answers are of which no length was foretold, so that nobody takes max_tokens for it."""

from __future__ import annotations

from collections import deque

import numpy as np

from serving.analyzer.sketch import LENGTH_LEVELS
from serving.engine.accounts import ROOM
from serving.requests import Floats, Ints

KEPT = 256
"""The latest answers that count."""

FEWEST_OWN = 8
"""A user with fewer answers than this is taken to be answered as all are."""


class UsualLength:
    """Quantiles of output lengths, for each user, by the user's number; 0 before the first answer.

    Of answers without a sketch that ended by themselves or at their limit.
    """

    def __init__(self) -> None:
        self._of_all: deque[int] = deque(maxlen=KEPT)
        self._quantiles: Floats = np.zeros(len(LENGTH_LEVELS))
        self._own: dict[int, deque[int]] = {}
        self._own_quantiles = np.full((ROOM, len(LENGTH_LEVELS)), np.nan)

    def begin(self, user: int) -> None:
        """This number is a new user's; it comes before all else of that user."""
        self._own.pop(user, None)
        if user >= len(self._own_quantiles):
            more = np.full((user + 1, len(LENGTH_LEVELS)), np.nan)
            self._own_quantiles = np.concatenate([self._own_quantiles, more])
        self._own_quantiles[user] = np.nan

    def ended(self, user: int, output_tokens: int) -> None:
        """An answer to this user is complete that carried no sketch."""
        own = self._own.setdefault(user, deque(maxlen=KEPT))
        own.append(output_tokens)
        self._of_all.append(output_tokens)
        self._quantiles = np.asarray(np.quantile(self._of_all, LENGTH_LEVELS), np.float64)
        if len(own) >= FEWEST_OWN:
            self._own_quantiles[user] = np.quantile(own, LENGTH_LEVELS)

    def lengths(self, users: Ints) -> Floats:
        """What to expect of each of these users' answers: (n, levels)."""
        own = self._own_quantiles[users]
        return np.where(np.isnan(own), self._quantiles, own)

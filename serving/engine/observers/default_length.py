"""Output lengths of recent answers: the default prediction for requests that carry none."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import numpy as np

from serving.engine.observers.service_counters import INITIAL_ROWS, grown_to
from serving.length_sketch import LENGTH_LEVELS
from serving.requests import Floats, Ints

KEPT_ANSWERS = 256
"""Latest answers of a user that its own quantiles are computed from."""

MIN_USER_ANSWERS = 8
"""Answers from which on a user has quantiles of its own; with fewer it gets those of all users.

The quantiles of all users are computed from this number of the latest answers of each user, so
that a user with many answers does not dominate them.
"""

MAX_USERS = 64
"""Users in the quantiles of all users: those with the most recent answers."""


class DefaultLengthState(NamedTuple):
    """The quantiles of all users, the answers of each, and the users in order of their last one."""

    of_all: list[float]
    of_users: list[list[int]]
    latest: list[int]


class DefaultLength:
    """Quantiles of output lengths at LENGTH_LEVELS by user number; 0 before the first answer.

    Counts complete answers of requests without a predicted length.
    """

    def __init__(self) -> None:
        self._latest: dict[int, deque[int]] = {}  # by user; the user of the last answer is last
        self._of_all: Floats = np.zeros(len(LENGTH_LEVELS))
        self._own: dict[int, deque[int]] = {}
        self._own_quantiles = np.full((INITIAL_ROWS, len(LENGTH_LEVELS)), np.nan)

    def begin(self, user: int) -> None:
        """Forget what this number stood for: it belongs to a new user from now on."""
        self._own.pop(user, None)
        self._latest.pop(user, None)
        self._own_quantiles = grown_to(self._own_quantiles, user, fill=np.nan)
        self._own_quantiles[user] = np.nan

    def ended(self, user: int, output_tokens: int) -> None:
        """Count a complete answer to a request of this user without a predicted length."""
        latest = self._latest.pop(user, None) or deque(maxlen=MIN_USER_ANSWERS)
        latest.append(output_tokens)
        self._latest[user] = latest
        if len(self._latest) > MAX_USERS:
            del self._latest[next(iter(self._latest))]
        lengths = [length for each in self._latest.values() for length in each]
        self._of_all = np.asarray(np.quantile(lengths, LENGTH_LEVELS), np.float64)
        own = self._own.setdefault(user, deque(maxlen=KEPT_ANSWERS))
        own.append(output_tokens)
        if len(own) >= MIN_USER_ANSWERS:
            self._own_quantiles[user] = np.quantile(own, LENGTH_LEVELS)

    def lengths(self, users: Ints) -> Floats:
        """The predicted quantiles for each of these users, (n, levels)."""
        own = self._own_quantiles[users]
        return np.where(np.isnan(own), self._of_all, own)

    def state(self, users: Ints) -> DefaultLengthState:
        """What was learned, of these users alone."""
        row = {user: row for row, user in enumerate(users.tolist())}
        return DefaultLengthState(
            self._of_all.tolist(),
            [list(self._own.get(user, ())) for user in row],
            [row[user] for user in self._latest if user in row],
        )

    def restore(self, state: DefaultLengthState) -> None:
        """Begin with what was learned; the users of the state are numbered from 0."""
        self._of_all = np.array(state.of_all)
        for user, answers in enumerate(state.of_users):
            self.begin(user)
            if answers:
                self._own[user] = deque(answers, maxlen=KEPT_ANSWERS)
            if len(answers) >= MIN_USER_ANSWERS:
                self._own_quantiles[user] = np.quantile(answers, LENGTH_LEVELS)
        for user in state.latest:
            self._latest[user] = deque(state.of_users[user], maxlen=MIN_USER_ANSWERS)

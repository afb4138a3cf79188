"""Exponentially decayed sums over recent calls, for each user and for all users together."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from serving.engine.observers.service_counters import INITIAL_ROWS, grown_to
from serving.requests import Floats, Ints


class DecayedSumsState(NamedTuple):
    """The sums over all users, (3,), and over each of n users, (3, n)."""

    of_all: list[float]
    of_users: list[list[float]]


class DecayedSums:
    """Three sums over calls: the number of calls, and two quantities of each call.

    Args:
        memory_calls: a call that many calls ago has the weight 1/e.
    Attributes:
        of_all: the sums over all users, (3,).
    """

    def __init__(self, memory_calls: int) -> None:
        self._decay = 1.0 - 1.0 / memory_calls
        self.of_all: Floats = np.zeros(3)
        self._of_users = np.zeros((3, INITIAL_ROWS))

    def begin(self, user: int) -> None:
        """Forget what this number stood for: it belongs to a new user from now on."""
        self._of_users = np.stack([grown_to(row, user) for row in self._of_users])
        self._of_users[:, user] = 0.0

    def add(self, user: int, first: float, second: float) -> None:
        """Add a call of this user with its two quantities."""
        call = np.array([1.0, first, second])
        self.of_all = self.of_all * self._decay + call
        self._of_users[:, user] = self._of_users[:, user] * self._decay + call

    def of_users(self, users: Ints) -> Floats:
        """The sums of each of these users, (3, n)."""
        sums: Floats = self._of_users[:, users]
        return sums

    def state(self, users: Ints) -> DecayedSumsState:
        """The sums, of these users alone."""
        return DecayedSumsState(self.of_all.tolist(), self.of_users(users).tolist())

    def restore(self, state: DecayedSumsState) -> None:
        """Begin with these sums; the users of the state are numbered from 0."""
        self.of_all = np.array(state.of_all)
        for user, sums in enumerate(zip(*state.of_users, strict=True)):
            self.begin(user)
            self._of_users[:, user] = sums

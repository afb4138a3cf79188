"""Sums over the calls that ended lately, for each user and for all of them together."""

from __future__ import annotations

import numpy as np

from serving.engine.observers.service_counters import ROOM, grown_to
from serving.requests import Floats, Ints


class DecayedSums:
    """How many calls, and two numbers of each added up: three sums, older calls count less.

    Args:
        memory_calls: what came this many calls ago counts 1/e of what comes now.
    """

    def __init__(self, memory_calls: int) -> None:
        self._kept = 1.0 - 1.0 / memory_calls
        self.of_all: Floats = np.zeros(3)
        self._own = np.zeros((3, ROOM))

    def begin(self, user: int) -> None:
        """This number is a new user's; it comes before all else of that user."""
        self._own = np.stack([grown_to(each, user) for each in self._own])
        self._own[:, user] = 0.0

    def add(self, user: int, one: float, other: float) -> None:
        """A call of this user ended, with these numbers."""
        call = np.array([1.0, one, other])
        self.of_all = self.of_all * self._kept + call
        self._own[:, user] = self._own[:, user] * self._kept + call

    def own(self, users: Ints) -> Floats:
        """The sums of each of these users: (3, n)."""
        sums: Floats = self._own[:, users]
        return sums

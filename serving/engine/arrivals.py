"""What arrived lately: the load that a policy has to expect."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.requests import Requests, new_columns

WINDOW_S = 60.0
"""How far back a view of the arrivals goes."""

LEAST_S = 10.0
"""A burst at the start is not taken for the rate of all that follows."""

SILENCE = 5.0
"""Nor is one that is over: at the rate that is told no more arrivals than these were to be expected
since the last one. By chance so many fail to come once in 150 times."""

MOST = 1024
"""Of more arrivals within the window only the latest are kept."""


class Arrivals:
    """The latest rows of a table, as they were when they were noted."""

    def __init__(self) -> None:
        self._began_s = np.inf
        self._columns = new_columns(2 * MOST)
        self._first = self._end = 0

    def note(self, columns: dict[str, NDArray[Any]], place: int) -> None:
        """A program arrived: this row."""
        self._began_s = min(self._began_s, columns["arrival_s"][place])
        if self._end == 2 * MOST:
            self._first = max(self._first, MOST)
            for column in self._columns.values():
                column[: self._end - self._first] = column[self._first : self._end].copy()
            self._first, self._end = 0, self._end - self._first
        for name, column in self._columns.items():
            column[self._end] = columns[name][place]
        self._end += 1
        self._first = max(self._first, self._end - MOST)

    def since(self, now_s: float) -> tuple[Requests, float]:
        """What arrived within the window, and the seconds in which it did, at least LEAST_S; more
        than have passed since the first of all arrivals, if none came for long."""
        times_s = self._columns["arrival_s"]
        noted = times_s[self._first : self._end]
        self._first += int(np.searchsorted(noted, now_s - WINDOW_S, side="right"))
        shown = {name: each[self._first : self._end] for name, each in self._columns.items()}
        began_s = max(now_s - WINDOW_S, self._began_s)
        if self._end - self._first == MOST:
            began_s = max(began_s, float(times_s[self._first]))
        arrivals = Requests(shown)
        last_s = float(arrivals.arrival_s.max(initial=now_s - WINDOW_S))
        silent_s = min(len(arrivals) * (now_s - last_s) / SILENCE, WINDOW_S)
        return arrivals, max(now_s - began_s, LEAST_S, silent_s)

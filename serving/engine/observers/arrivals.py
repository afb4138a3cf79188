"""What arrived lately: the load that a policy has to expect."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.requests import COMPOUND, DEADLINE, Floats, Requests, new_columns

WINDOWS_S = (60.0, 120.0, 240.0, 480.0)
"""How far back a view of the arrivals goes: the longer, the longer they may take, as what comes at
once and may wait presses the machine for so long. Each holds those who may take as long as it."""

LEAST_S = 10.0
"""A burst at the start is not taken for the rate of all that follows."""

SILENCE = 5.0
"""Nor is one that is over: at the rate that is told no more arrivals than these were to be expected
since the last one. By chance so many fail to come once in 150 times."""

MOST = 1024
"""Of more arrivals within a window only the latest are kept."""

Columns = dict[str, NDArray[Any]]


class Arrivals:
    """The latest rows of a table, as they were when they were noted."""

    def __init__(self) -> None:
        self._began_s = np.inf
        self._recent = [_Recent(window_s) for window_s in WINDOWS_S]

    def note(self, columns: Columns, place: int) -> None:
        """A program arrived: this row."""
        arrival_s, allowed_s = float(columns["arrival_s"][place]), 0.0
        if columns["kind"][place] in (DEADLINE, COMPOUND):
            allowed_s = float(columns["final_s"][place]) - arrival_s
        self._began_s = min(self._began_s, arrival_s)
        self._recent[bisect_right(WINDOWS_S[1:], allowed_s)].note(columns, place)

    def since(self, now_s: float) -> tuple[Requests, float, Floats]:
        """What arrived within the windows, the seconds in which what is due soonest did, and of how
        many that came in so many seconds each one tells: 1, and less in a longer window, (k,).

        The seconds are at least LEAST_S, and more than have passed since the first of all arrivals
        if none came for long.
        """
        told = [recent.since(now_s, self._began_s) for recent in self._recent]
        seconds = told[0][1]
        counts = [np.full(len(each["arrival_s"]), seconds / within_s) for each, within_s in told]
        some = [each for each, _ in told if len(each["arrival_s"])] or [told[0][0]]
        if len(some) > 1:
            some = [{name: np.concatenate([each[name] for each in some]) for name in some[0]}]
        return Requests(some[0]), seconds, np.concatenate(counts)


class _Recent:
    """The rows of one window."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._columns = new_columns(2 * MOST)
        self._first = self._end = 0

    def note(self, columns: Columns, place: int) -> None:
        if self._end == 2 * MOST:
            self._first = max(self._first, MOST)
            for column in self._columns.values():
                column[: self._end - self._first] = column[self._first : self._end].copy()
            self._first, self._end = 0, self._end - self._first
        for name, column in self._columns.items():
            column[self._end] = columns[name][place]
        self._end += 1
        self._first = max(self._first, self._end - MOST)

    def since(self, now_s: float, first_s: float) -> tuple[Columns, float]:
        """The rows, and the seconds in which they came.

        Args:
            first_s: when the first of all arrivals came, into whatever window.
        """
        times_s, began_s = self._columns["arrival_s"], now_s - self._window_s
        noted = times_s[self._first : self._end]
        self._first += int(np.searchsorted(noted, began_s, side="right"))
        shown = {name: each[self._first : self._end] for name, each in self._columns.items()}
        last_s = float(shown["arrival_s"].max(initial=began_s))
        began_s = max(began_s, first_s)
        if self._end - self._first == MOST:
            began_s = max(began_s, float(times_s[self._first]))
        silent_s = len(shown["arrival_s"]) * (now_s - last_s) / SILENCE
        return shown, max(now_s - began_s, LEAST_S, min(silent_s, self._window_s))

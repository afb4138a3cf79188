"""Recent arrivals: the demand that a policy must expect."""

from __future__ import annotations

from bisect import bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.requests import COMPOUND, DEADLINE, Floats, Requests, new_columns

WINDOWS_S = (60.0, 120.0, 240.0, 480.0)
"""Lengths of the windows of arrivals, in seconds.

A program belongs to the longest window that does not exceed its allowed time (deadline minus
arrival); to the first window if all do, or if it has no deadline. A burst of programs loads the
engine for as long as their deadlines allow, so arrivals with later deadlines count for longer.
"""

MIN_WINDOW_S = 10.0
"""Least length of a window in seconds: a burst at the start of the engine is not a lasting rate."""

MAX_MISSED_ARRIVALS = 5.0
"""Largest number of arrivals that a window's rate may predict for the time since the last one.

After a burst a window is extended, up to its full length, until its rate satisfies this: else the
rate of the burst would count as the present one. Of Poisson arrivals, 5 expected ones all fail to
come with probability exp(-5), about 1/150.
"""

MAX_ARRIVALS = 1024
"""Arrivals that are kept for each window: the latest."""

Columns = dict[str, NDArray[Any]]


class Arrivals:
    """The latest arrivals of programs, as copies of their rows at arrival."""

    def __init__(self) -> None:
        self._first_arrival_s = np.inf
        self._windows = [_Window(window_s) for window_s in WINDOWS_S]

    def add(self, columns: Columns, row: int) -> None:
        """Copy the row of a program that has just arrived."""
        arrival_s, allowed_s = float(columns["arrival_s"][row]), 0.0
        if columns["kind"][row] in (DEADLINE, COMPOUND):
            allowed_s = float(columns["final_s"][row]) - arrival_s
        self._first_arrival_s = min(self._first_arrival_s, arrival_s)
        self._windows[bisect_right(WINDOWS_S[1:], allowed_s)].add(columns, row)

    def recent(self, now_s: float) -> tuple[Requests, float, Floats]:
        """The arrivals in all windows.

        Returns:
            The k arrivals; the length of the first window in seconds; the weight of each arrival,
            (k,): the length of the first window divided by the length of the arrival's window. A
            window is shorter than in WINDOWS_S while the engine is new or if MAX_ARRIVALS cuts it,
            but at least MIN_WINDOW_S.
        """
        windows = [window.recent(now_s, self._first_arrival_s) for window in self._windows]
        first_window_s = windows[0][1]
        weights = [np.full(num_rows, first_window_s / window_s) for num_rows, window_s in windows]
        filled = [
            window.rows()
            for window, (num_rows, _) in zip(self._windows, windows, strict=True)
            if num_rows
        ]
        columns = filled[0] if filled else self._windows[0].rows()
        if len(filled) > 1:
            columns = {name: np.concatenate([rows[name] for rows in filled]) for name in columns}
        return Requests(columns), first_window_s, np.concatenate(weights)


class _Window:
    """The arrivals of one window, in columns of twice the rows that are kept."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._columns = new_columns(2 * MAX_ARRIVALS)
        self._first = self._end = 0

    def add(self, columns: Columns, row: int) -> None:
        if self._end == 2 * MAX_ARRIVALS:
            self._first = max(self._first, MAX_ARRIVALS)
            for column in self._columns.values():
                column[: self._end - self._first] = column[self._first : self._end].copy()
            self._first, self._end = 0, self._end - self._first
        for name, column in self._columns.items():
            column[self._end] = columns[name][row]
        self._end += 1
        self._first = max(self._first, self._end - MAX_ARRIVALS)

    def rows(self) -> Columns:
        """The rows in the window, as of the last `recent`."""
        return {name: each[self._first : self._end] for name, each in self._columns.items()}

    def recent(self, now_s: float, first_arrival_s: float) -> tuple[int, float]:
        """The number of rows in the window, and its length in seconds.

        Args:
            first_arrival_s: the first arrival in any window since the engine started.
        """
        times_s, window_start_s = self._columns["arrival_s"], now_s - self._window_s
        kept_s = times_s[self._first : self._end]
        self._first += int(np.searchsorted(kept_s, window_start_s, side="right"))
        kept_s = times_s[self._first : self._end]
        last_arrival_s = float(kept_s.max(initial=window_start_s))
        window_start_s = max(window_start_s, first_arrival_s)
        num_arrivals, silence_s = len(kept_s), now_s - last_arrival_s
        if num_arrivals == MAX_ARRIVALS:
            window_start_s = max(window_start_s, float(kept_s[0]))
        extended_s = min(num_arrivals * silence_s / MAX_MISSED_ARRIVALS, self._window_s)
        return num_arrivals, max(now_s - window_start_s, MIN_WINDOW_S, extended_s)

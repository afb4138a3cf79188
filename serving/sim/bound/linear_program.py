"""A linear program with many rows and few entries in each, put together piece by piece."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_array

from serving.workload_errors import SimError

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


class Solution(NamedTuple):
    """The greatest value, and the shape (columns,) at which it is reached."""

    value: float
    columns: Floats


class _Rows:
    """Sums over columns, each at most (or just) its limit."""

    def __init__(self) -> None:
        self._entries: list[tuple[Ids, Ids, Floats]] = []
        self._limits: list[Floats] = []
        self.count = 0

    def new(self, limits: Floats) -> Ids:
        self._limits.append(limits)
        self.count += len(limits)
        return np.arange(self.count - len(limits), self.count)

    def add(self, rows: ArrayLike, columns: ArrayLike, factors: ArrayLike) -> None:
        row_ids, column_ids, values = np.broadcast_arrays(rows, columns, factors)
        self._entries.append((row_ids.ravel(), column_ids.ravel(), values.ravel()))

    def matrix(self, num_columns: int) -> tuple[csr_array, Floats] | tuple[None, None]:
        """The factors, shape (rows, columns), and the limits; None where there is no row."""
        if not self._entries:
            return None, None
        rows, columns, factors = (
            np.concatenate(parts) for parts in zip(*self._entries, strict=True)
        )
        shape = (self.count, num_columns)
        return csr_array((factors, (rows, columns)), shape=shape), np.concatenate(self._limits)


class LinearProgram:
    """Maximises a weighted sum of columns, which are all at least 0, under rows.

    Attributes:
        at_most: rows whose sum may not exceed their limit.
        exactly: rows whose sum is their limit.
    """

    def __init__(self) -> None:
        self.at_most = _Rows()
        self.exactly = _Rows()
        self._worth: list[Floats] = []
        self._most: list[Floats] = []
        self._num_columns = 0

    def columns(self, count: int, *, worth: ArrayLike = 0.0, most: ArrayLike = np.inf) -> Ids:
        """New columns, each with what one unit adds to the value, and its upper limit."""
        self._worth.append(np.broadcast_to(np.asarray(worth, dtype=np.float64), count))
        self._most.append(np.broadcast_to(np.asarray(most, dtype=np.float64), count))
        self._num_columns += count
        return np.arange(self._num_columns - count, self._num_columns)

    def maximise(self) -> Solution:
        """The optimum, to the solver's tolerances (1e-7); the same program gives the same.

        Raises:
            SimError: the solver gave up.
        """
        at_most, limits = self.at_most.matrix(self._num_columns)
        exactly, values = self.exactly.matrix(self._num_columns)
        worth, most = np.concatenate(self._worth), np.concatenate(self._most)
        reasons = []
        # Interior point is several times quicker on most of ours; simplex copes with the rest.
        for method in ("highs-ipm", "highs-ds"):
            found = linprog(
                -worth,
                A_ub=at_most,
                b_ub=limits,
                A_eq=exactly,
                b_eq=values,
                bounds=np.column_stack((np.zeros(self._num_columns), most)),
                method=method,
            )
            if found.status == 0:
                return Solution(-float(found.fun), np.asarray(found.x))
            reasons.append(f"{method}: {found.message}")
        raise SimError(f"a linear program could not be solved ({'; '.join(reasons)})")

"""A sparse linear program, assembled from blocks of columns and rows."""

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
    """The maximum of the objective, and the columns that reach it: shape (num_columns,)."""

    value: float
    columns: Floats


class _Rows:
    """Constraints: each row is a weighted sum of columns with a right-hand side."""

    def __init__(self) -> None:
        self._entries: list[tuple[Ids, Ids, Floats]] = []
        self._limits: list[Floats] = []
        self.count = 0

    def new(self, limits: Floats) -> Ids:
        """Add rows with these right-hand sides; returns their indices."""
        self._limits.append(limits)
        self.count += len(limits)
        return np.arange(self.count - len(limits), self.count)

    def add(self, rows: ArrayLike, columns: ArrayLike, factors: ArrayLike) -> None:
        """Add factors * columns to rows; the arguments are broadcast against each other."""
        row_ids, column_ids, values = np.broadcast_arrays(rows, columns, factors)
        self._entries.append((row_ids.ravel(), column_ids.ravel(), values.ravel()))

    def matrix(self, num_columns: int) -> tuple[csr_array, Floats] | tuple[None, None]:
        """The factors, shape (rows, columns), and the limits; (None, None) without entries."""
        if not self._entries:
            return None, None
        rows, columns, factors = (
            np.concatenate(parts) for parts in zip(*self._entries, strict=True)
        )
        shape = (self.count, num_columns)
        return csr_array((factors, (rows, columns)), shape=shape), np.concatenate(self._limits)


class LinearProgram:
    """Maximises a weighted sum of columns, each at least 0, subject to rows.

    Attributes:
        at_most: rows with a sum of at most their limit.
        exactly: rows with a sum of exactly their limit.
    """

    def __init__(self) -> None:
        self.at_most = _Rows()
        self.exactly = _Rows()
        self._objective: list[Floats] = []
        self._upper: list[Floats] = []
        self._num_columns = 0

    def columns(self, count: int, *, objective: ArrayLike = 0.0, upper: ArrayLike = np.inf) -> Ids:
        """Add columns; returns their indices.

        Args:
            objective: what one unit of each column adds to the objective.
            upper: upper limit of each column.
        """
        self._objective.append(np.broadcast_to(np.asarray(objective, dtype=np.float64), count))
        self._upper.append(np.broadcast_to(np.asarray(upper, dtype=np.float64), count))
        self._num_columns += count
        return np.arange(self._num_columns - count, self._num_columns)

    def maximise(self) -> Solution:
        """The optimum, to the solver's tolerances (1e-7); deterministic.

        Raises:
            SimError: no solver method succeeded.
        """
        at_most, limits = self.at_most.matrix(self._num_columns)
        exactly, values = self.exactly.matrix(self._num_columns)
        objective, upper = np.concatenate(self._objective), np.concatenate(self._upper)
        reasons = []
        # Interior point is several times faster on most of our programs; simplex is the fallback.
        for method in ("highs-ipm", "highs-ds"):
            result = linprog(
                -objective,
                A_ub=at_most,
                b_ub=limits,
                A_eq=exactly,
                b_eq=values,
                bounds=np.column_stack((np.zeros(self._num_columns), upper)),
                method=method,
            )
            if result.status == 0:
                return Solution(-float(result.fun), np.asarray(result.x))
            reasons.append(f"{method}: {result.message}")
        raise SimError(f"a linear program could not be solved ({'; '.join(reasons)})")

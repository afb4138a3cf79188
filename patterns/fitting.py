"""Bandwidths of the stage kernel, fitted to how well past runs foretell each other.

Each pattern in turn is left out, and the others foretell the accumulated share of each of its
stages from those before it. The bandwidths with the least mean relative error win, found by going
through the attributes one at a time, over a grid.

Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems, section 4.1
(accumulated share); Weinberger and Tesauro (2007), Metric learning for kernel regression (the
criterion: leave-one-out error of the kernel regression itself).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from patterns.features import ATTRIBUTES, Bools, Floats, Outlook, PatternTable
from patterns.kernel import StageKernel
from patterns.matching import BEST_K

MIN_PATTERNS = 8
"""With fewer there is nothing to fit: the spread of each attribute is its bandwidth."""

SAMPLE = 200
"""Patterns used, evenly spaced over all: the error of more of them is much the same."""

STAGES = 48
"""Stages used of each pattern, from its start: a longer one would take memory, not tell more."""

_GRID = (0.25, 0.5, 1.0, 2.0, 4.0, math.inf)  # in units of each attribute's spread
_ROUNDS = 2
_WORTHWHILE = 0.99  # what lowers the error by less is chance, and no reason for another width
_ELAPSED, _STAGE, _REST, _SHARE = (
    Outlook._fields.index(field) for field in ("elapsed_s", "stage_s", "rest_s", "share")
)


@dataclass(frozen=True, slots=True)
class _Step:
    """Everything that foretelling stage s of each pattern from each other one needs."""

    squared: Floats  # (3, n, n) per attribute, added up over the stages before s
    alike: Bools  # (n, n): j made the calls of i up to stage s, and i has that stage
    outlooks: Floats  # (n, 12) of stage s
    num_revealed: int


def fit_kernel(table: PatternTable, *, best: int = BEST_K) -> StageKernel:
    """The kernel under which the patterns of one application foretell each other best.

    Args:
        best: past runs that an estimate rests on.
    """
    spread = _spread(table)
    if len(table) < MIN_PATTERNS:
        return StageKernel(tuple(spread))
    steps = _steps(_sampled(table))
    widths = [1.0] * len(ATTRIBUTES)
    least = _error(steps, widths, spread, best)
    for _ in range(_ROUNDS):
        before = tuple(widths)
        for place in range(len(ATTRIBUTES)):
            for width in _GRID:
                tried = [*widths[:place], width, *widths[place + 1 :]]
                error = _error(steps, tried, spread, best) if width != widths[place] else least
                if error < least * _WORTHWHILE:
                    least, widths = error, tried
        if tuple(widths) == before:
            break
    return StageKernel(tuple(width * unit for width, unit in zip(widths, spread, strict=True)))


def _spread(table: PatternTable) -> list[float]:
    """Standard deviation of each attribute within a stage, over all stages; 1 where it is 0."""
    has = np.arange(table.features.shape[1])[None, :] < table.num_stages[:, None]
    counts = np.maximum(has.sum(axis=0), 1)
    centred = table.features - table.features.sum(axis=0) / counts[:, None]
    variance = np.square(centred)[has].sum(axis=0) / max(int(has.sum()), 1)
    return [math.sqrt(value) if value > 1e-12 else 1.0 for value in variance.tolist()]


def _sampled(table: PatternTable) -> PatternTable:
    """Some of the patterns, and of each its beginning; outlooks still see its end."""
    rows = np.unique(np.linspace(0, len(table) - 1, min(len(table), SAMPLE)).astype(np.int64))
    return PatternTable(
        np.minimum(table.num_stages[rows], STAGES),
        table.features[rows, :STAGES],
        table.outlooks[rows, :STAGES],
        table.signature[rows, :STAGES],
        table.signatures,
    )


def _steps(table: PatternTable) -> list[_Step]:
    num, width = table.signature.shape
    within = np.array([table.stages_with(calls) for calls in table.signatures])
    squared = np.zeros((len(ATTRIBUTES), num, num))
    alike = ~np.eye(num, dtype=bool)
    steps = []
    for stage in range(width):
        signature = table.signature[:, stage]
        exists = table.num_stages > stage
        made = within[signature][:, signature] if len(within) else np.zeros((num, num), dtype=bool)
        alike = alike & made & exists[:, None]
        if stage and alike.any():
            steps.append(_Step(squared.copy(), alike, table.outlooks[:, stage], stage))
        column = table.features[:, stage].T
        squared += np.square(column[:, :, None] - column[:, None, :])
    return steps


def _error(steps: list[_Step], widths: list[float], spread: list[float], best: int) -> float:
    """Mean relative error of the accumulated share, over every stage that can be foretold."""
    units = zip(widths, spread, strict=True)
    precision = np.array([0.0 if math.isinf(w) else 1.0 / (w * unit) ** 2 for w, unit in units])
    errors = [_step_errors(step, precision, best) for step in steps]
    every = np.concatenate(errors) if errors else np.zeros(1)
    return float(every.mean())


def _step_errors(step: _Step, precision: Floats, best: int) -> Floats:
    rows = np.flatnonzero(step.alike.any(axis=1))
    squared = np.tensordot(precision, step.squared[:, rows], axes=1) / step.num_revealed
    squared[~step.alike[rows]] = np.inf
    place = min(best, squared.shape[1]) - 1
    limit = np.partition(squared, place, axis=1)[:, place]
    nearest = squared.min(axis=1)
    squared[squared > limit[:, None]] = np.inf
    weights = np.exp(-0.5 * (squared - nearest[:, None]))
    weights /= weights.sum(axis=1, keepdims=True)
    stage_s, rest_s = (weights @ step.outlooks[:, [_STAGE, _REST]]).T
    elapsed_s = weights @ step.outlooks[:, _ELAPSED]
    share = (elapsed_s + stage_s) / (elapsed_s + rest_s)
    errors: Floats = np.abs(share / step.outlooks[rows, _SHARE] - 1.0)
    return errors

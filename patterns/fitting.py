"""Fits the bandwidths of the stage kernel to the error with which past runs predict each other.

Each pattern in turn is left out, and the others predict the accumulated share of each of its stages
from the stages before it. The fit minimises the mean relative error, by coordinate descent over a
grid: one attribute at a time. Patterns that were cut off predict others, with completed outlooks,
but are not predicted, as their own shares are not known.

Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems, section 4.1
(accumulated share); Weinberger and Tesauro (2007), Metric learning for kernel regression (the
criterion: leave-one-out error of the kernel regression itself).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from patterns.censoring import completed_outlooks
from patterns.features import ATTRIBUTES, Bools, Floats, Outlook, PatternTable
from patterns.kernel import StageKernel
from patterns.matching import BEST_K

MIN_PATTERNS = 8
"""With fewer patterns each bandwidth is the standard deviation of its attribute, not fitted."""

MAX_PATTERNS = 200
"""Patterns used, evenly spaced over all; more of them give nearly the same error."""

MAX_STAGES = 48
"""Stages used of each pattern, from its start; more take memory and hardly change the error."""

_GRID = (0.25, 0.5, 1.0, 2.0, 4.0, math.inf)  # in units of each attribute's standard deviation
_ROUNDS = 2
_MAX_RATIO = 0.99  # another bandwidth is taken if new error / old error is below this
_ELAPSED, _STAGE, _REST, _SHARE = (
    Outlook._fields.index(field) for field in ("elapsed_s", "stage_s", "rest_s", "share")
)


@dataclass(frozen=True, slots=True)
class _StageData:
    """The data with which each pattern's stage s is predicted from every other pattern."""

    squared: Floats  # (3, n, n) squared differences per attribute, summed over the stages before s
    is_match: Bools  # (n, n): j has the calls of i up to stage s; i was not cut off, and has it
    outlooks: Floats  # (n, 12) of stage s
    num_revealed: int  # stages before s


def fit_kernel(table: PatternTable, *, best: int = BEST_K) -> StageKernel:
    """The kernel with which the patterns of one application predict each other best.

    Args:
        best: number of past runs in an estimate.
    """
    deviations = _standard_deviations(table)
    if len(table) < MIN_PATTERNS:
        return StageKernel(tuple(deviations))
    stages = _stage_data(_sampled(table))
    widths = [1.0] * len(ATTRIBUTES)
    lowest = _error(stages, widths, deviations, best)
    for _ in range(_ROUNDS):
        before = tuple(widths)
        for i in range(len(ATTRIBUTES)):
            for width in _GRID:
                trial = [*widths[:i], width, *widths[i + 1 :]]
                error = _error(stages, trial, deviations, best) if width != widths[i] else lowest
                if error < lowest * _MAX_RATIO:
                    lowest, widths = error, trial
        if tuple(widths) == before:
            break
    return StageKernel(tuple(width * unit for width, unit in zip(widths, deviations, strict=True)))


def _standard_deviations(table: PatternTable) -> list[float]:
    """The standard deviations of the attributes from their stages' means; 1 if one is 0."""
    has = np.arange(table.features.shape[1])[None, :] < table.num_stages[:, None]
    counts = np.maximum(has.sum(axis=0), 1)
    centred = table.features - table.features.sum(axis=0) / counts[:, None]
    variance = np.square(centred)[has].sum(axis=0) / max(int(has.sum()), 1)
    return [math.sqrt(value) if value > 1e-12 else 1.0 for value in variance.tolist()]


def _sampled(table: PatternTable) -> PatternTable:
    """A sample of the patterns, with their first stages; outlooks still cover whole runs.

    Those of patterns that were cut off are completed.
    """
    outlooks = completed_outlooks(table, np.ones(len(table)))
    rows = np.unique(np.linspace(0, len(table) - 1, min(len(table), MAX_PATTERNS)).astype(np.int64))
    return PatternTable(
        np.minimum(table.num_stages[rows], MAX_STAGES),
        table.features[rows, :MAX_STAGES],
        outlooks[rows, :MAX_STAGES],
        table.signature[rows, :MAX_STAGES],
        table.signatures,
        table.is_cut_off[rows],
    )


def _stage_data(table: PatternTable) -> list[_StageData]:
    """The data of every stage after the first that some pattern matches."""
    num, width = table.signature.shape
    contained = np.array([table.stages_with(calls) for calls in table.signatures])
    squared = np.zeros((len(ATTRIBUTES), num, num))
    is_match = ~np.eye(num, dtype=bool) & ~table.is_cut_off[:, None]
    stages = []
    for stage in range(width):
        signature = table.signature[:, stage]
        exists = table.num_stages > stage
        has_calls = (
            contained[signature][:, signature]
            if len(contained)
            else np.zeros((num, num), dtype=bool)
        )
        is_match = is_match & has_calls & exists[:, None]
        if stage and is_match.any():
            stages.append(_StageData(squared.copy(), is_match, table.outlooks[:, stage], stage))
        column = table.features[:, stage].T
        squared += np.square(column[:, :, None] - column[:, None, :])
    return stages


def _error(
    stages: list[_StageData], widths: list[float], deviations: list[float], best: int
) -> float:
    """Mean relative error of the accumulated share, over all stages that can be predicted."""
    units = zip(widths, deviations, strict=True)
    precision = np.array([0.0 if math.isinf(w) else 1.0 / (w * unit) ** 2 for w, unit in units])
    errors = [_stage_errors(stage, precision, best) for stage in stages]
    all_errors = np.concatenate(errors) if errors else np.zeros(1)
    return float(all_errors.mean())


def _stage_errors(stage: _StageData, precision: Floats, best: int) -> Floats:
    """Relative errors of the accumulated share, for each pattern that has matches."""
    rows = np.flatnonzero(stage.is_match.any(axis=1))
    squared = np.tensordot(precision, stage.squared[:, rows], axes=1) / stage.num_revealed
    squared[~stage.is_match[rows]] = np.inf
    last = min(best, squared.shape[1]) - 1
    limit = np.partition(squared, last, axis=1)[:, last]
    nearest = squared.min(axis=1)
    squared[squared > limit[:, None]] = np.inf
    weights = np.exp(-0.5 * (squared - nearest[:, None]))
    weights /= weights.sum(axis=1, keepdims=True)
    stage_s, rest_s = (weights @ stage.outlooks[:, [_STAGE, _REST]]).T
    elapsed_s = weights @ stage.outlooks[:, _ELAPSED]
    share = (elapsed_s + stage_s) / (elapsed_s + rest_s)
    errors: Floats = np.abs(share / stage.outlooks[rows, _SHARE] - 1.0)
    return errors

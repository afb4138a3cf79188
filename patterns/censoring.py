"""Completes the outlooks of runs that were cut off by their deadlines, from runs that went further.

A run that was cut off is a censored observation: its last stage, and what would have come after it,
are known to be at least what was recorded. To take such runs as whole teaches that runs are short,
and so does leaving them out, as long runs are cut off more often. So each of them is redistributed
to the right: its last stage and the rest are taken as the mean of those of the runs that made the
same calls in that stage, and either ended in it or went on. Runs that were cut off later count
among these, completed in the same way. Of equal stages this gives the Kaplan-Meier estimate of
their number, with a run that was cut off in a stage censored just before the stage's end.

Source: Efron (1967), The two sample problem with censored data, section 7 (redistribution to the
right); Kaplan and Meier (1958), Nonparametric estimation from incomplete observations.
"""

from __future__ import annotations

import numpy as np

from patterns.features import Bools, Floats, Ints, Outlook, PatternTable

_FIELDS = Outlook._fields
_ELAPSED_S, _STAGE_S, _REST_S, _SHARE, _LATER_S = (
    _FIELDS.index(field) for field in ("elapsed_s", "stage_s", "rest_s", "share", "later_s")
)
_OF_STAGE = [_FIELDS.index(field) for field in ("stage_s", "stage_calls", "stage_llm_calls")]
_LATER = [_FIELDS.index(field) for field in _FIELDS if field.startswith("later_")]


def completed_outlooks(table: PatternTable, weights: Floats) -> Floats:
    """The outlooks of a table, with those of the patterns that were cut off completed.

    A pattern without any that made the same calls in its last stage, and was not cut off in it,
    stays as it is.

    Args:
        weights: shape (n,), number of runs that each pattern represents; > 0.
    Returns:
        shape (n, s, 12): the table's own array if no pattern was cut off.
    """
    cut_off = np.flatnonzero(table.is_cut_off & (table.num_stages > 0))
    if not len(cut_off):
        return table.outlooks
    outlooks = table.outlooks.copy()
    last = table.num_stages[cut_off] - 1
    kinds = np.stack([-last, table.signature[cut_off, last]], axis=1)
    groups, group_of = np.unique(kinds, axis=0, return_inverse=True)  # the longest patterns first
    for group, (negative, signature) in enumerate(groups.tolist()):
        rows = cut_off[group_of.reshape(-1) == group]
        donors = _donors(table, -negative, signature)
        if donors.any():
            _complete(outlooks, rows, -negative, donors, weights)
    return outlooks


def _donors(table: PatternTable, stage: int, signature: int) -> Bools:
    """Shape (n,): which patterns made these calls in this stage, and completed it."""
    has_calls = table.stages_with(table.signatures[signature])[table.signature[:, stage]]
    donors: Bools = has_calls & ((table.num_stages > stage + 1) | ~table.is_cut_off)
    return donors


def _complete(outlooks: Floats, rows: Ints, last: int, donors: Bools, weights: Floats) -> None:
    """Complete the outlooks of patterns with the same last stage, in place.

    The last stage is at least what it was when it was cut off.

    Args:
        rows: of the patterns.
        donors: shape (n,), the patterns from which they are completed.
    """
    shares = weights[donors] / weights[donors].sum()
    mean = shares @ outlooks[donors, last]
    block = outlooks[rows, : last + 1]
    if last:
        whole_mean = shares @ outlooks[donors, last - 1][:, _LATER]  # of the last stage and later
        own = block[:, last - 1, _LATER]
        gain = np.maximum(own, whole_mean - mean[_LATER]) - own + mean[_LATER]
        block[:, :last, _LATER] += gain[:, None]
        block[:, :last, _REST_S] += gain[:, [_LATER.index(_LATER_S)]]
    block[:, last, _OF_STAGE] = np.maximum(block[:, last, _OF_STAGE], mean[_OF_STAGE])
    block[:, last, _LATER] = mean[_LATER]
    block[:, last, _REST_S] = block[:, last, _STAGE_S] + block[:, last, _LATER_S]
    elapsed_s, stage_s, rest_s = (block[:, :, at] for at in (_ELAPSED_S, _STAGE_S, _REST_S))
    block[:, :, _SHARE] = np.minimum((elapsed_s + stage_s) / (elapsed_s + rest_s), 1.0)
    outlooks[rows, : last + 1] = block

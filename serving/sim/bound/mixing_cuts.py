"""Mixing inequalities: steps that whole programs need, which a relaxation to fractions misses.

A program with a chain of n sequential steps needs n engine steps between its release and its due
time. A linear program that serves a fraction x of it can only require n * x steps. Then
240 steps would suffice for 0.8 of a chain of 300, 0.6 of one of 400 and 0.4 of one of 600, all at
once. A real schedule serves a program or does not, and needs as many steps as the longest chain
that it serves. With chains in descending order of length, n1 > n2 > ... > nm, and the served
fractions x1, ..., xm,

    (n1 - n2) x1 + (n2 - n3) x2 + ... + nm xm <= steps

holds for every choice of whole programs: the sum over the served ones is at most the length of the
longest. The fractions above violate it: 200 * 0.4 + 100 * 0.6 + 300 * 0.8 = 380. These are the
inequalities of the mixing set. With all of them only mixtures of whole choices remain feasible, as
far as the steps of the same bins are concerned.

Source: Atamtürk, Nemhauser and Savelsbergh (2000), The mixed vertex packing problem, Mathematical
Programming 89, where they are called star inequalities; Günlük and Pochet (2001), Mixing
mixed-integer inequalities, Mathematical Programming 90.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from serving.sim.bound.linear_program import Floats, Ids

_TOLERANCE_STEPS = 1e-4
"""A cut counts as violated beyond this: solver and rounding errors of a sum at its limit."""


class Chains(NamedTuple):
    """Programs that earn all or nothing; each attribute has shape (m,).

    Attributes:
        columns: index of the column that is the served fraction.
        steps: length of the longest chain of sequential steps.
        first_bin, last_bin: the bins in which the steps may be made, both included.
    """

    columns: Ids
    steps: Floats
    first_bin: Ids
    last_bin: Ids


class Cut(NamedTuple):
    """sum(factors * columns) <= the steps of the bins from first_bin to last_bin, both included.

    Attributes:
        columns, factors: shape (k,).
    """

    columns: Ids
    factors: Floats
    first_bin: int
    last_bin: int


def violated_cuts(chains: Chains, served: Floats, steps: Floats) -> Iterator[Cut]:
    """The most violated cut of each span of bins, for spans that are some chain's own.

    A span without violated cuts yields nothing.

    Args:
        served: shape (m,): the served fraction of each chain's program.
        steps: shape (bins,): the steps made in each bin.
    """
    steps_before = np.concatenate(([0.0], np.cumsum(steps)))
    longest_first = np.argsort(-chains.steps, kind="stable")
    spans = set(zip(chains.first_bin.tolist(), chains.last_bin.tolist(), strict=True))
    for first, last in sorted(spans):
        is_inside = (chains.first_bin >= first) & (chains.last_bin <= last)
        inside = longest_first[is_inside[longest_first]]
        # A chain that is served less than a longer one adds nothing to the sum.
        largest = np.maximum.accumulate(served[inside])
        chosen = inside[np.diff(largest, prepend=0.0) > 0]
        factors = -np.diff(chains.steps[chosen], append=0.0)
        available = steps_before[last + 1] - steps_before[first]
        if factors @ served[chosen] > available + _TOLERANCE_STEPS:
            is_used = factors > 0
            yield Cut(chains.columns[chosen[is_used]], factors[is_used], first, last)

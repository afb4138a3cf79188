"""What whole programs side by side need in steps, of which an optimum over fractions knows nothing.

A program whose longest chain of calls is n steps needs n steps of the machine between its release
and its due. Of a fraction of it a linear program can only say that half of it needs half as many.
So 240 steps would do for 0.8 of a chain of 300, for 0.6 of one of 400 and for 0.4 of one of 600,
all at once. But a schedule serves a program or does not, and needs as many steps as the longest
that it serves. In the order of their lengths, n1 > n2 > ... > nm, with x1, x2, ... of each served,

    (n1 - n2) x1 + (n2 - n3) x2 + ... + nm xm <= steps

holds for every choice of whole programs: what those served add up to is at most the length of the
longest. It does not hold for the fractions above: 200 * 0.4 + 100 * 0.6 + 300 * 0.8 = 380. These
are the inequalities of the mixing set; with all of them only mixtures of whole choices are left,
as far as the steps of the same bins are concerned.

Source: Atamtürk, Nemhauser and Savelsbergh (2000), The mixed vertex packing problem, Mathematical
Programming 89, where they are called star inequalities; Günlük and Pochet (2001), Mixing
mixed-integer inequalities, Mathematical Programming 90.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from serving.sim.bound.linear_program import Floats, Ids

_SLACK_STEPS = 1e-4  # what the solver and rounding may make of a sum that is just its limit


class Chains(NamedTuple):
    """Programs that earn all or nothing, each a row of shape (m,).

    Attributes:
        columns: the fraction of it that is served.
        steps: of its longest chain, one after another.
        begin, end: the first and the last bin in which they may be made.
    """

    columns: Ids
    steps: Floats
    begin: Ids
    end: Ids


class Cut(NamedTuple):
    """sum(factors * columns) <= the steps of the bins from begin to end, both included.

    Attributes:
        columns, factors: shape (k,).
    """

    columns: Ids
    factors: Floats
    begin: int
    end: int


def broken_cuts(chains: Chains, served: Floats, steps: Floats) -> Iterator[Cut]:
    """For each span of bins that is some chain's own, the cut that is broken most, if one is.

    Args:
        served: shape (m,): the fraction of each chain's program.
        steps: shape (bins,).
    """
    made = np.concatenate(([0.0], np.cumsum(steps)))
    longest_first = np.argsort(-chains.steps, kind="stable")
    for begin, end in sorted(set(zip(chains.begin.tolist(), chains.end.tolist(), strict=True))):
        within = (chains.begin >= begin) & (chains.end <= end)
        inside = longest_first[within[longest_first]]
        # Who is served less than a longer one adds nothing to the sum.
        most = np.maximum.accumulate(served[inside])
        chosen = inside[np.diff(most, prepend=0.0) > 0]
        factors = -np.diff(chains.steps[chosen], append=0.0)
        if factors @ served[chosen] > made[end + 1] - made[begin] + _SLACK_STEPS:
            some = factors > 0
            yield Cut(chains.columns[chosen[some]], factors[some], begin, end)

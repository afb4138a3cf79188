"""Whether a deadline can be met at all, by what past runs took."""

from __future__ import annotations

import logging
from typing import Literal, NamedTuple

from orchestrator.errors import DeadlineInfeasible
from patterns.library import PatternLibrary

logger = logging.getLogger("orchestrate")

Infeasible = Literal["warn", "fail"]

ENOUGH_RUNS = 5.0
"""So many past runs say how long one takes at least."""


class Bound(NamedTuple):
    """What no past run of a flow went below.

    Attributes:
        seconds: of the shortest of them, its stages one after the other.
        runs: how many there are.
    """

    seconds: float
    runs: int


def learned_bound(library: PatternLibrary) -> Bound | None:
    """The least that a run of this application takes; None before enough have ended."""
    runs = sum(pattern.weight for pattern in library.patterns)
    if runs < ENOUGH_RUNS:
        return None
    shortest = min(sum(stage.seconds for stage in pattern.stages) for pattern in library.patterns)
    return Bound(shortest, round(runs))


def check_feasible(
    flow: str, deadline_s: float | None, library: PatternLibrary, what_then: Infeasible
) -> None:
    """Say at once that a deadline is shorter than every past run was.

    Args:
        what_then: "warn" logs it, and the run tries; "fail" raises.
    Raises:
        DeadlineInfeasible: if it is to fail.
    """
    bound = None if deadline_s is None else learned_bound(library)
    if deadline_s is None or bound is None or bound.seconds <= deadline_s:
        return
    error = DeadlineInfeasible(flow, deadline_s, bound.seconds, bound.runs)
    if what_then == "fail":
        raise error
    logger.warning("%s", error)

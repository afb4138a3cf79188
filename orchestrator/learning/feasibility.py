"""Whether a deadline can be met: compares it with the shortest past run."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Literal, NamedTuple

from orchestrator.errors import DeadlineInfeasible

if TYPE_CHECKING:
    from patterns.library import PatternLibrary

logger = logging.getLogger("orchestrate")

Infeasible = Literal["warn", "fail"]

MIN_RUNS = 5.0
"""Past runs (summed pattern weights) from which a lower bound is derived; with fewer there is
none."""


class Bound(NamedTuple):
    """A lower bound of a flow's duration, from its past runs.

    Attributes:
        seconds: the sum over the stages of the shortest past run.
        runs: number of past runs.
    """

    seconds: float
    runs: int


def learned_bound(library: PatternLibrary) -> Bound | None:
    """The shortest past run of an application; None with fewer than MIN_RUNS past runs.

    Runs that were cut off by their deadlines do not count: they would have taken longer.
    """
    whole = [pattern for pattern in library.patterns if not pattern.is_cut_off]
    runs = sum(pattern.weight for pattern in whole)
    if runs < MIN_RUNS:
        return None
    shortest = min(sum(stage.seconds for stage in pattern.stages) for pattern in whole)
    return Bound(shortest, round(runs))


class Feasibility(NamedTuple):
    """What past runs say about a deadline.

    Attributes:
        deadline_s: None: there is none.
        bound: the shortest past run; None: too few are known.
    """

    deadline_s: float | None
    bound: Bound | None

    @property
    def is_feasible(self) -> bool | None:
        """Whether a past run was short enough; None: without a deadline, or with too few runs."""
        if self.deadline_s is None or self.bound is None:
            return None
        return self.bound.seconds <= self.deadline_s


def check_feasible(
    flow: str, deadline_s: float | None, library: PatternLibrary, action: Infeasible
) -> Feasibility:
    """Warn or fail if a deadline is shorter than every past run.

    Args:
        action: "warn" logs a warning and the run proceeds; "fail" raises.
    Returns:
        What was found.
    Raises:
        DeadlineInfeasible: the deadline is shorter, and the action is "fail".
    """
    bound = None if deadline_s is None else learned_bound(library)
    found = Feasibility(deadline_s, bound)
    if deadline_s is None or bound is None or found.is_feasible:
        return found
    error = DeadlineInfeasible(flow, deadline_s, bound.seconds, bound.runs)
    if action == "fail":
        raise error
    logger.warning("%s", error)
    return found

"""From a run's deadline to the sub-deadlines of its stages.

The accumulated share phi(s) is the fraction of a past run's time that had passed at the end of
stage s: phi(s) = t_<=s / t_total. Stage s of a run with deadline D is due at phi(s) * D. If the
stage begins early or late, it gets the same fraction of the remaining time as on schedule:
D_s = now + (D - now) * (phi(s) - phi(s-1)) / (1 - phi(s-1)). On schedule, at now = phi(s-1) * D,
both are equal.

Source: Wu (2025), SLO-Aware Optimization and Stateful Orchestration for LLM Systems, section 4.1
(accumulated share) and appendix A (the two alternatives).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING

from patterns.errors import InvalidShare
from patterns.stages import Stage, accumulated_seconds

if TYPE_CHECKING:
    from patterns.features import Outlook


class Formulation(StrEnum):
    """The definitions of a stage's share; the values are their formulas."""

    ACCUMULATED = "t_<=s / t_total"
    STAGE = "t_s / t_total"
    REMAINING = "t_s / t_>=s"


def share_of(outlook: Outlook, formulation: Formulation = Formulation.ACCUMULATED) -> float:
    """A stage's share by a formulation, in (0, 1]; the last stage's accumulated share is 1."""
    total_s = outlook.elapsed_s + outlook.rest_s
    if formulation is Formulation.ACCUMULATED:
        return (outlook.elapsed_s + outlook.stage_s) / total_s
    if formulation is Formulation.STAGE:
        return outlook.stage_s / total_s
    return outlook.stage_s / outlook.rest_s


def accumulated_shares(stages: Sequence[Stage]) -> tuple[float, ...]:
    """phi of every stage of a pattern: ascending, above 0, the last one exactly 1.

    A stage takes at least MIN_STAGE_S, so that no stage is due when it begins.
    """
    ends = accumulated_seconds(stages)
    return tuple(end / ends[-1] for end in ends)


def stage_deadlines_s(shares: Sequence[float], deadline_s: float) -> tuple[float, ...]:
    """phi(s) * D for every stage: the sub-deadlines of a run on schedule, in s from its start.

    Raises:
        InvalidShare: the shares are not ascending within (0, 1].
    """
    before = 0.0
    for share in shares:
        _check(before, share)
        before = share
    return tuple(share * deadline_s for share in shares)


def amortized_s(left_s: float, *, share_before: float, share: float) -> float:
    """Seconds that a stage gets of the time left to the run; in [0, left_s] if left_s >= 0.

    The result is 0 for a stage without a share of its own: if share equals share_before.

    Args:
        left_s: seconds until the run's deadline; negative after it, as is then the result.
        share_before: phi of the previous stage; 0 for the first.
        share: phi of this stage; 1 for the last, which gets all the time left.
    Raises:
        InvalidShare: not 0 <= share_before <= share <= 1, or share is 0.
    """
    _check(share_before, share)
    if share == 1.0:
        return left_s
    fraction = (share - share_before) / (1.0 - share_before)
    return left_s * min(fraction, 1.0)


def _check(before: float, share: float) -> None:
    if not (0.0 <= before <= share <= 1.0 and share > 0.0):
        raise InvalidShare(before, share)

"""The run's deadline -> the sub-deadline of each stage -> the SLO of each call."""

from __future__ import annotations

import math
from typing import NamedTuple

from serving.slo import BEST_EFFORT, OnLate, Slo, SloKind

FALLBACK = "fallback"
"""Source of a sub-deadline that nothing learned went into."""

MIN_REMAINING_S = 0.001
"""What a call that begins at its deadline is still promised: the wire form has no past."""


class StageDeadline(NamedTuple):
    """When a stage is to end, absolute on the run's clock, and where that comes from."""

    at_s: float
    source: str

    def by(self, limit_at_s: float) -> StageDeadline:
        """The same, but never later than a limit."""
        return self._replace(at_s=min(self.at_s, limit_at_s))


class StageDeadlines:
    """Divides a run's deadline evenly over the stages seen so far and those expected.

    A stage's sub-deadline is fixed when its first call begins, from the time that is then left,
    so that a stage that ended early or late changes the share of all that follow. It never
    passes the run's own deadline.
    """

    def __init__(self, *, deadline_at_s: float, expected_stages: int | None) -> None:
        self._deadline_at_s = deadline_at_s
        self._expected = expected_stages or 1
        self._stages: dict[int, StageDeadline] = {}

    def of(self, stage: int, now_s: float) -> StageDeadline:
        """The sub-deadline of a stage that is at work now; infinity in a run without deadline."""
        known = self._stages.get(stage)
        if known is None:
            stages_left = max(self._expected - stage, 1)
            at_s = now_s + max(self._deadline_at_s - now_s, 0.0) / stages_left
            known = StageDeadline(min(at_s, self._deadline_at_s), FALLBACK)
            self._stages[stage] = known
        return known


def call_slo(
    *,
    run_id: str,
    stage: int,
    stage_calls: int,
    stage_deadline: StageDeadline,
    deadline_at_s: float,
    now_s: float,
) -> Slo:
    """The promise made to one LLM call of a run.

    Args:
        stage_calls: calls expected in this stage, this one included.
        deadline_at_s: when the call's surroundings must end: the run, or a shorter limit within.
    """
    if math.isinf(deadline_at_s):
        return BEST_EFFORT
    final_s = max(deadline_at_s - now_s, MIN_REMAINING_S)
    own_s = max(stage_deadline.by(deadline_at_s).at_s - now_s, MIN_REMAINING_S)
    return Slo(
        kind=SloKind.COMPOUND,
        deadline_s=own_s,
        final_s=final_s,
        on_late=OnLate.CONTINUE,
        program=run_id,
        stage=stage,
        stage_calls=stage_calls,
    )

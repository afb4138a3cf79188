"""The run's deadline -> the sub-deadline of each stage -> the SLO of each call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from patterns.amortization import amortized_s
from patterns.features import Call
from patterns.matching import Estimate, LiveMatch
from patterns.stages import Stage
from serving.analyzer.sketch import LengthSketch
from serving.slo import BEST_EFFORT, FutureWork, OnLate, Slo, SloKind

FALLBACK = "fallback"
"""Source of a sub-deadline that nothing learned went into: an even share of the time left."""

LEARNED = "learned"
"""Source of a sub-deadline that divides the time left as similar past runs spent theirs."""

MIN_REMAINING_S = 0.001
"""What a call that begins at its deadline is still promised: the wire form has no past."""

Reveal = Callable[[int], Stage | None]


class StageDeadline(NamedTuple):
    """When a stage is to end, absolute on the run's clock, and where that comes from.

    Attributes:
        estimate: what past runs said of the stage; None where none was like this one.
    """

    at_s: float
    source: str
    estimate: Estimate | None = None

    def by(self, limit_at_s: float) -> StageDeadline:
        """The same, but never later than a limit."""
        return self._replace(at_s=min(self.at_s, limit_at_s))


class StageDeadlines:
    """Divides a run's deadline over its stages: as similar past runs did, else evenly.

    A stage's sub-deadline is fixed when its first call begins, from the time that is then left,
    so that a stage that ended early or late changes the share of all that follow. It never comes
    before that of a stage before it, and never passes the run's own deadline.

    Args:
        expected_stages: over how many the time is divided where nothing is learned.
        match: the run's beginning among past runs, None where there are none.
    """

    def __init__(
        self,
        *,
        deadline_at_s: float,
        expected_stages: int | None,
        match: LiveMatch | None = None,
    ) -> None:
        self._deadline_at_s = deadline_at_s
        self._expected = expected_stages or 1
        self._match = match
        self._stages: dict[int, StageDeadline] = {}
        self._latest_at_s = -math.inf

    def has(self, stage: int) -> bool:
        """Whether a stage has begun, and so has its deadline."""
        return stage in self._stages

    def of(
        self, stage: int, now_s: float, *, begun: Call | None = None, reveal: Reveal | None = None
    ) -> StageDeadline:
        """The sub-deadline of a stage that is at work now; infinity in a run without deadline.

        Args:
            begun: the call that begins in it, which tells it from other stages.
            reveal: what is known of a stage before it, None for one without a finished call.
        """
        known = self._stages.get(stage)
        if known is None:
            estimate = self._estimate(stage, begun, reveal)
            known = self._divided(stage, now_s, estimate)
            self._stages[stage] = known
        return known

    def _estimate(self, stage: int, begun: Call | None, reveal: Reveal | None) -> Estimate | None:
        """What past runs say of a stage; from the first that nothing is like, no more is asked."""
        match = self._match
        while match is not None and match.num_stages < stage:
            past = None if reveal is None else reveal(match.num_stages)
            match = None if past is None else match.extend(past)
            if match is not None and not match.is_possible:
                match = None
        self._match = match
        if match is None:
            return None
        return match.estimate(() if begun is None else (begun,))

    def _divided(self, stage: int, now_s: float, estimate: Estimate | None) -> StageDeadline:
        left_s = max(self._deadline_at_s - now_s, 0.0)
        if estimate is None:
            source, own_s = FALLBACK, left_s / max(self._expected - stage, 1)
        else:
            source = LEARNED
            own_s = amortized_s(
                left_s, share_before=estimate.share_before, share=estimate.outlook.share
            )
        # Stages begin in their order, so the latest deadline so far is of one before this.
        at_s = min(max(now_s + own_s, self._latest_at_s), self._deadline_at_s)
        self._latest_at_s = at_s
        return StageDeadline(at_s, source, estimate)


def call_slo(
    *,
    run_id: str,
    stage: int,
    stage_calls: int,
    stage_deadline: StageDeadline,
    deadline_at_s: float,
    now_s: float,
    length: LengthSketch | None = None,
) -> Slo:
    """The promise made to one LLM call of a run.

    Args:
        stage_calls: calls that this stage is known to have, this one included; past runs may
            have had more.
        deadline_at_s: when the call's surroundings must end: the run, or a shorter limit within.
        length: how long the answer may be, None where nothing is known.
    """
    if math.isinf(deadline_at_s):
        return BEST_EFFORT if length is None else Slo(length=length)
    final_s = max(deadline_at_s - now_s, MIN_REMAINING_S)
    own_s = max(stage_deadline.by(deadline_at_s).at_s - now_s, MIN_REMAINING_S)
    estimate = stage_deadline.estimate
    expected_calls = 0 if estimate is None else round(estimate.outlook.stage_calls)
    return Slo(
        kind=SloKind.COMPOUND,
        deadline_s=own_s,
        final_s=final_s,
        on_late=OnLate.CONTINUE,
        program=run_id,
        stage=stage,
        stage_calls=max(stage_calls, expected_calls),
        length=length,
        future=None if estimate is None else _future(estimate),
    )


def _future(estimate: Estimate) -> FutureWork:
    outlook = estimate.outlook
    return FutureWork(
        calls=outlook.later_calls,
        prefill_tokens=outlook.later_input_tokens,
        decode_tokens=outlook.later_output_tokens,
        critical_s=outlook.later_s,
        tool_s=outlook.later_tool_s,
    )

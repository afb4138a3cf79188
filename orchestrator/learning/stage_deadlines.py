"""The run's deadline -> the sub-deadline of each stage -> the SLO of each call."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from patterns.amortization import amortized_s
from patterns.features import Call, Outlook
from patterns.matching import Estimate, LiveMatch
from patterns.stages import Stage
from serving.length_sketch import LengthSketch
from serving.slo import FutureWork, OnLate, Slo, SloKind

FALLBACK = "fallback"
"""Source of a sub-deadline that nothing learned went into: an even share of the time left."""

LEARNED = "learned"
"""Source of a sub-deadline that divides the time left as similar past runs spent theirs."""

MIN_REMAINING_S = 0.001
"""What a call that begins at its deadline is still promised: the wire form has no past."""

LIMIT_RESOLUTION_S = 0.001
"""Limits that end within this of each other are one: what lies between them is rounding."""

Reveal = Callable[[int], Stage | None]


def is_shorter(limit_at_s: float, around_at_s: float) -> bool:
    """Whether a limit ends before the one around it, by more than rounding; infinity is none."""
    return around_at_s - limit_at_s > LIMIT_RESOLUTION_S


class RunTimes(NamedTuple):
    """When a run began, and when it must end: absolute on its clock, infinity without deadline."""

    started_s: float
    deadline_at_s: float


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
    run: RunTimes,
    stage: int,
    stage_calls: int,
    stage_deadline: StageDeadline,
    limit_at_s: float,
    now_s: float,
    num_programs: int = 1,
    length: LengthSketch | None = None,
    user: str = "",
) -> Slo:
    """The promise made to one LLM call of a run.

    A limit that is shorter than the run is a promise of its own: what is done under it must end
    by then, and what the run does afterwards need not. So its calls are a program of their own,
    since all calls of a program share one end, and of the rest of the run they carry only the
    share that lies before the limit. Otherwise the scheduler would ask of a step of 20 s that the
    whole run ends within them, and give it up as hopeless.

    Args:
        stage_calls: calls that are known to be made side by side, tools' too; 1: nothing is known.
        stage_deadline: of the stage, whatever limit this call of it is under.
        limit_at_s: when the call's surroundings must end: the run, or a shorter limit within.
        num_programs: into how many programs, side by side, limits in branches divide the run here.
        length: how long the answer may be, None where nothing is known.
        user: whose run it is.
    """
    if math.isinf(limit_at_s):
        return Slo(length=length, user=user)
    estimate = stage_deadline.estimate
    outlook = None if estimate is None else estimate.outlook
    share = _share_before(limit_at_s, stage_deadline.at_s, run.deadline_at_s)
    return Slo(
        kind=SloKind.COMPOUND,
        deadline_s=max(stage_deadline.by(limit_at_s).at_s - now_s, MIN_REMAINING_S),
        final_s=max(limit_at_s - now_s, MIN_REMAINING_S),
        on_late=OnLate.CONTINUE,
        program=_program(run_id, limit_at_s, run),
        stage=stage,
        stage_calls=_llm_calls(outlook, stage_calls, num_programs),
        length=length,
        future=None if outlook is None else _future(outlook, share, num_programs),
        user=user,
    )


def _program(run_id: str, limit_at_s: float, run: RunTimes) -> str:
    """A name for the calls that must end together: the run's, with a shorter limit that they have.

    The limit counts from the run's start, so that it is the same after the run was resumed.
    """
    if not is_shorter(limit_at_s, run.deadline_at_s):
        return run_id
    return f"{run_id}+{limit_at_s - run.started_s:.3f}s"


def _share_before(limit_at_s: float, stage_at_s: float, deadline_at_s: float) -> float:
    """The share of a run's time after a stage that lies before a limit, in [0, 1].

    A run without deadline has time without end, of which a limit leaves nothing.
    """
    if not is_shorter(limit_at_s, deadline_at_s):
        return 1.0
    if math.isinf(deadline_at_s):
        return 0.0
    left_s = max(limit_at_s - stage_at_s, 0.0)
    return left_s / (left_s + deadline_at_s - limit_at_s)


def _llm_calls(outlook: Outlook | None, known: int, num_programs: int) -> int:
    """How many LLM calls a stage of a program has: what the engine sees of it, at least 1.

    What is known exactly counts, but for the share of tools in it; else the mean of past runs.
    """
    if outlook is None:
        return known
    if known > 1:
        expected = known * outlook.stage_llm_calls / outlook.stage_calls
    else:
        expected = outlook.stage_llm_calls / num_programs
    return max(round(expected), 1)


def _future(outlook: Outlook, share: float, num_programs: int) -> FutureWork | None:
    """A program's share of the rest of its run; None without any.

    Programs side by side divide the work of later stages, and each lasts as long as these do: it
    shares neither their time nor the tokens that come one after the other.
    """
    if share == 0.0:
        return None
    work = share / num_programs
    return FutureWork(
        calls=work * outlook.later_llm_calls,
        prefill_tokens=work * outlook.later_input_tokens,
        decode_tokens=work * outlook.later_output_tokens,
        critical_s=share * outlook.later_s,
        tool_s=share * outlook.later_tool_s,
        serial_tokens=share * outlook.later_serial_tokens,
    )

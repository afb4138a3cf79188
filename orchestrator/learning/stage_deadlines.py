"""Divides a run's deadline into sub-deadlines of stages, and derives each call's SLO."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from patterns.amortization import amortized_s
from patterns.stages import Stage
from serving.length_sketch import LengthSketch
from serving.slo import FutureWork, OnLate, Slo, SloKind

if TYPE_CHECKING:
    from patterns.features import Call, Outlook
    from patterns.matching import Estimate, LiveMatch

FALLBACK = "fallback"
"""Source of a sub-deadline without knowledge of past runs: an even share of the time left."""

LEARNED = "learned"
"""Source of a sub-deadline that divides the time left in the proportions of similar past runs."""

MIN_REMAINING_S = 0.001
"""Smallest deadline of a call, in seconds from now: the wire format has no past deadlines."""

LIMIT_RESOLUTION_S = 0.001
"""Time limits that end within this many seconds of each other are equal: the rest is rounding."""

SummaryOf = Callable[[int], Stage | None]
"""The summary of an earlier stage of the run; None if none of its calls has ended."""


def is_shorter(limit_at_s: float, around_at_s: float) -> bool:
    """Whether a limit ends before the one around it, by more than rounding; infinity: no limit."""
    return around_at_s - limit_at_s > LIMIT_RESOLUTION_S


class RunTimes(NamedTuple):
    """A run's start and deadline, absolute on its clock; infinity without a deadline."""

    started_s: float
    deadline_at_s: float


class StageDeadline(NamedTuple):
    """The sub-deadline of a stage, and how it was found.

    Attributes:
        at_s: absolute, on the run's clock; infinity in a run without a deadline.
        source: FALLBACK or LEARNED.
        estimate: about the stage, from similar past runs; None without any.
    """

    at_s: float
    source: str
    estimate: Estimate | None = None

    def not_after(self, limit_at_s: float) -> StageDeadline:
        """The same, but not later than a limit."""
        return self._replace(at_s=min(self.at_s, limit_at_s))


class StageDeadlines:
    """Divides a run's deadline among its stages: in the proportions of past runs, else evenly.

    A stage's sub-deadline is fixed when its first call begins, from the time left then. So a stage
    that ended early or late changes the sub-deadlines of all stages after it. Sub-deadlines never
    decrease from stage to stage, and never exceed the run's deadline.

    Args:
        expected_stages: number of stages among which the time is divided without past runs.
        match: compares the run with past runs; None without any.
    """

    def __init__(
        self,
        *,
        deadline_at_s: float,
        expected_stages: int | None,
        match: LiveMatch | None = None,
    ) -> None:
        self._deadline_at_s = deadline_at_s
        self._expected_stages = expected_stages or 1
        self._match = match
        self._stages: dict[int, StageDeadline] = {}
        self._latest_at_s = -math.inf

    def has(self, stage: int) -> bool:
        """Whether a stage has begun, so that its sub-deadline is fixed."""
        return stage in self._stages

    def of(
        self,
        stage: int,
        now_s: float,
        *,
        first_call: Call | None = None,
        summary_of: SummaryOf | None = None,
    ) -> StageDeadline:
        """The sub-deadline of a stage; fixed now if its first call begins now.

        Args:
            first_call: the call that begins in it, used to find similar past runs.
            summary_of: for comparing the run so far with past runs.
        """
        deadline = self._stages.get(stage)
        if deadline is None:
            self._match = self._match_before(stage, summary_of)
            deadline = self._divide(stage, now_s, _estimate(self._match, first_call))
            self._stages[stage] = deadline
            # Stages begin in order, so the latest deadline so far is that of an earlier stage.
            self._latest_at_s = deadline.at_s
        return deadline

    def preview(
        self, stage: int, now_s: float, *, summary_of: SummaryOf | None = None
    ) -> StageDeadline:
        """The sub-deadline that a stage has, or would have if it began now; nothing is fixed.

        Args:
            summary_of: as in `of`.
        """
        if self.has(stage):
            return self._stages[stage]
        return self._divide(stage, now_s, _estimate(self._match_before(stage, summary_of), None))

    def _match_before(self, stage: int, summary_of: SummaryOf | None) -> LiveMatch | None:
        """The match of all stages before one; None from the first stage on that no run matches."""
        match = self._match
        while match is not None and match.num_stages < stage:
            past = None if summary_of is None else summary_of(match.num_stages)
            match = None if past is None else match.extend(past)
            if match is not None and not match.is_possible:
                match = None
        return match

    def _divide(self, stage: int, now_s: float, estimate: Estimate | None) -> StageDeadline:
        left_s = max(self._deadline_at_s - now_s, 0.0)
        if estimate is None:
            source, own_s = FALLBACK, left_s / max(self._expected_stages - stage, 1)
        else:
            source = LEARNED
            own_s = amortized_s(
                left_s, share_before=estimate.share_before, share=estimate.outlook.share
            )
        at_s = min(max(now_s + own_s, self._latest_at_s), self._deadline_at_s)
        return StageDeadline(at_s, source, estimate)


def _estimate(match: LiveMatch | None, first_call: Call | None) -> Estimate | None:
    """The estimate for the stage after a match; None without one."""
    if match is None:
        return None
    return match.estimate(() if first_call is None else (first_call,))


def slo_after(slo: Slo, elapsed_s: float) -> Slo:
    """An SLO some seconds after it was made: its deadlines are that much nearer."""
    if slo.deadline_s is None or slo.final_s is None:
        return slo
    return replace(
        slo,
        deadline_s=max(slo.deadline_s - elapsed_s, MIN_REMAINING_S),
        final_s=max(slo.final_s - elapsed_s, MIN_REMAINING_S),
    )


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
    """The SLO of one LLM call of a run.

    All calls of a program share one final deadline. A time limit within the run (`within`, a
    timeout, a nested flow) must be met by the calls under it, but not by the rest of the run. So
    these calls form a program of their own, and their future work includes only the share of the
    rest of the run that falls before the limit. Otherwise the scheduler would assume that the
    whole run has to end within, say, the 20 s of one step, and reject its calls as infeasible.

    Args:
        stage_calls: number of calls known to run in parallel, tool calls included; 1: unknown.
        stage_deadline: of the stage, not shortened by a limit around this call.
        limit_at_s: the deadline around the call: the run's, or that of a shorter limit.
        num_programs: number of parallel branches with limits of their own that divide the run.
        length: prediction of the answer's length; None if unknown.
        user: the run's user.
    """
    if math.isinf(limit_at_s):
        return Slo(length=length, user=user)
    estimate = stage_deadline.estimate
    outlook = None if estimate is None else estimate.outlook
    share = _share_before(limit_at_s, stage_deadline.at_s, run.deadline_at_s)
    return Slo(
        kind=SloKind.COMPOUND,
        deadline_s=max(stage_deadline.not_after(limit_at_s).at_s - now_s, MIN_REMAINING_S),
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
    """The program of a call: the run's id, plus the limit around the call if that is shorter.

    The limit counts from the run's start, so that the name is the same after a resume.
    """
    if not is_shorter(limit_at_s, run.deadline_at_s):
        return run_id
    return f"{run_id}+{limit_at_s - run.started_s:.3f}s"


def _share_before(limit_at_s: float, stage_at_s: float, deadline_at_s: float) -> float:
    """The share, in [0, 1], of a run's time after a stage that falls before a limit.

    1 if the limit is the run's deadline; 0 if the run has no deadline but the call has a limit.
    """
    if not is_shorter(limit_at_s, deadline_at_s):
        return 1.0
    if math.isinf(deadline_at_s):
        return 0.0
    left_s = max(limit_at_s - stage_at_s, 0.0)
    return left_s / (left_s + deadline_at_s - limit_at_s)


def _llm_calls(outlook: Outlook | None, stage_calls: int, num_programs: int) -> int:
    """Expected number of LLM calls of a stage of a program, at least 1.

    If the number of calls (LLM and tool calls) is known, it is multiplied by the share of LLM calls
    in past runs; else it is the mean of past runs, divided among parallel programs.
    """
    if outlook is None:
        return stage_calls
    if stage_calls > 1:
        expected = stage_calls * outlook.stage_llm_calls / outlook.stage_calls
    else:
        expected = outlook.stage_llm_calls / num_programs
    return max(round(expected), 1)


def _future(outlook: Outlook, share: float, num_programs: int) -> FutureWork | None:
    """A program's share of the later stages of its run; None if the share is 0.

    Parallel programs divide the work of later stages (calls, tokens) among them. They do not divide
    its duration or its serial tokens: each program takes that long.

    Args:
        share: of the later stages that falls before the program's deadline, as `_share_before`.
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

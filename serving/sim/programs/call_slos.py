"""The SLO and the predictions that each call of a program carries to the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

from serving.sim.programs.lengths import DEFAULT_MAX_TOKENS
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.programs import Program, StageCall
from serving.slo import OnLate, Slo, SloKind

MIN_REMAINING_S = 0.001
"""Deadline of a call that starts past its deadline: SLO tags hold only positive durations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What the engine sees of each call besides its SLO.

    Attributes:
        lengths, futures: None: no such predictions.
        token_s, prefill_token_s: speed of an idle machine, to predict seconds of future work.
        max_tokens: the limit of every call, the same for all so that it does not reveal lengths;
            no answer may be longer.
    """

    lengths: LengthErrors | None = None
    futures: FutureErrors | None = None
    token_s: float = 0.012
    prefill_token_s: float = 0.00005
    max_tokens: int = DEFAULT_MAX_TOKENS


def slo_of(program: Program, call: StageCall, now_s: float, predictions: Predictions) -> Slo:
    """The SLO of one call, as the orchestrator's runtime would set it.

    A stage of a compound program gets an even share of the remaining time: remaining time / (1 +
    predicted number of later stages).
    """
    length = None
    if predictions.lengths is not None:
        length = predictions.lengths.sketch(call.call_id, call.call.output_tokens)
    own = Slo(length=length, weight=program.weight, user=program.user)
    if program.kind is SloKind.BEST_EFFORT:
        return own
    if program.kind is SloKind.LATENCY:
        return replace(own, kind=SloKind.LATENCY, ttft_s=program.ttft_s, tbt_s=program.tbt_s)
    assert program.deadline_s is not None, "this kind has a deadline"
    remaining_s = max(program.arrival_s + program.deadline_s - now_s, MIN_REMAINING_S)
    if program.kind is SloKind.DEADLINE:
        return replace(own, kind=SloKind.DEADLINE, deadline_s=remaining_s)
    stage_calls = len(program.stages[call.stage].calls)
    future = None
    stages_left = 1.0
    if predictions.futures is not None:
        future = predictions.futures.future(
            program,
            call.stage,
            token_s=predictions.token_s,
            prefill_token_s=predictions.prefill_token_s,
        )
        stages_left += predictions.futures.later_stages(program, call.stage)
    return replace(
        own,
        kind=SloKind.COMPOUND,
        deadline_s=max(remaining_s / stages_left, MIN_REMAINING_S),
        final_s=remaining_s,
        on_late=OnLate.CONTINUE,
        program=program.id,
        stage=call.stage,
        stage_calls=stage_calls,
        future=future,
    )

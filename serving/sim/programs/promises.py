"""What each call of a program is promised, and what the engine is told of it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from serving.sim.programs.lengths import USUAL_ANSWER_TOKENS
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.programs import Program, StageCall
from serving.slo import OnLate, Slo, SloKind

MIN_REMAINING_S = 0.001
"""What a call that begins past its deadline is still promised: the wire form has no past."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What the engine is told of each call beyond its deadline.

    Attributes:
        lengths, futures: None: nothing is known.
        token_s, prefill_token_s: an idle machine's speed, for estimates of what is to come.
        max_tokens: every call's limit, the same for all, so that it is no hint at a length; no
            answer may be longer.
    """

    lengths: LengthErrors | None = None
    futures: FutureErrors | None = None
    token_s: float = 0.012
    prefill_token_s: float = 0.00005
    max_tokens: int = USUAL_ANSWER_TOKENS


def slo_of(program: Program, call: StageCall, now_s: float, predictions: Predictions) -> Slo:
    """The promise that one call carries, as the runtime would make it.

    A compound program's stage gets an even share of the time left, over itself and the later
    stages that are foretold.
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
    left_s = max(program.arrival_s + program.deadline_s - now_s, MIN_REMAINING_S)
    if program.kind is SloKind.DEADLINE:
        return replace(own, kind=SloKind.DEADLINE, deadline_s=left_s)
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
        deadline_s=max(left_s / stages_left, MIN_REMAINING_S),
        final_s=left_s,
        on_late=OnLate.CONTINUE,
        program=program.id,
        stage=call.stage,
        stage_calls=stage_calls,
        future=future,
    )

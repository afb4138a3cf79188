"""The SLO of each call of a program, with predictions that are the truth with an error."""

from __future__ import annotations

from dataclasses import dataclass, replace

from serving.length_sketch import LengthSketch
from serving.sim.programs.lengths import DEFAULT_MAX_TOKENS
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.programs import Program, StageCall
from serving.slo import OnLate, Slo, SloKind

PART_END = 8
"""Id of the token that ends the first part of an answer in two parts."""

MIN_REMAINING_S = 0.001
"""Deadline of a call that starts past its deadline: SLO tags hold only positive durations."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The truth with a stated error, or nothing: a Predictor that does not learn.

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

    def slo_of(self, program: Program, call: StageCall, now_s: float) -> Slo:
        """The SLO of one call.

        A stage of a compound program gets an even share of the remaining time: remaining time / (1
        + predicted number of later stages).
        """
        length = then_length = None
        if self.lengths is not None:
            tokens = call.call.output_tokens
            whole_tokens = call.call.whole_tokens or tokens
            length = self.lengths.sketch(call.call_id, whole_tokens)
            if whole_tokens < tokens:
                then_length = self.lengths.sketch(f"{call.call_id}/then", tokens - whole_tokens)
        if program.kind is not SloKind.COMPOUND:
            slo = single_call_slo(program, now_s, length)
            return in_parts(slo, program, call, then_length)
        future = None
        stages_left = 1.0
        if self.futures is not None:
            future = self.futures.future(
                program,
                call.stage,
                token_s=self.token_s,
                prefill_token_s=self.prefill_token_s,
            )
            stages_left += self.futures.later_stages(program, call.stage)
        remaining_s = _remaining_s(program, now_s)
        slo = Slo(
            length=length,
            weight=program.weight,
            user=program.user,
            kind=SloKind.COMPOUND,
            deadline_s=max(remaining_s / stages_left, MIN_REMAINING_S),
            final_s=remaining_s,
            on_late=OnLate.CONTINUE,
            program=program.id,
            stage=call.stage,
            stage_calls=len(program.stages[call.stage].calls),
            future=future,
        )
        return in_parts(slo, program, call, then_length)

    def call_ended(
        self, program: Program, call: StageCall, *, began_s: float, now_s: float
    ) -> None:
        """Nothing is learned."""


def single_call_slo(program: Program, now_s: float, length: LengthSketch | None) -> Slo:
    """The SLO of a call that is submitted now, of a program that is not compound."""
    slo = Slo(length=length, weight=program.weight, user=program.user)
    if program.kind is SloKind.LATENCY:
        return replace(slo, kind=SloKind.LATENCY, ttft_s=program.ttft_s, tbt_s=program.tbt_s)
    if program.kind is SloKind.DEADLINE:
        return replace(slo, kind=SloKind.DEADLINE, deadline_s=_remaining_s(program, now_s))
    assert program.kind is SloKind.BEST_EFFORT, "a compound program has stages"
    return slo


def in_parts(
    slo: Slo, program: Program, call: StageCall, then_length: LengthSketch | None = None
) -> Slo:
    """The SLO of a call with that of the second part of its answer, if there is one."""
    if call.call.then_from is None:
        return slo
    if not call.call.then_from:  # all of the answer is the second part
        return replace(slo, then_tbt_s=program.then_tbt_s)
    then_tbt_s = program.then_tbt_s
    return replace(slo, then_token=PART_END, then_tbt_s=then_tbt_s, then_length=then_length)


def _remaining_s(program: Program, now_s: float) -> float:
    assert program.deadline_s is not None, "this kind has a deadline"
    return max(program.arrival_s + program.deadline_s - now_s, MIN_REMAINING_S)

"""What each call of a simulated program is promised."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.sim.predictions import ORACLE_FUTURES, FutureErrors, LengthErrors
from serving.sim.programs import Call, Program, Stage
from serving.sim.promises import MIN_REMAINING_S, Foresight, slo_of
from serving.sim.workloads import generate
from serving.slo import Slo, SloKind, from_tags, to_tags

NOTHING = Foresight()
TOLD = Foresight(lengths=LengthErrors(), futures=FutureErrors())


def a_program(kind: SloKind, stages: int = 1) -> Program:
    return Program(
        id="p",
        application="app",
        kind=kind,
        arrival_s=10.0,
        stages=(Stage((Call(100, 50),)),) * stages,
        ttft_s=1.5,
        tbt_s=0.05,
        deadline_s=40.0 if kind in (SloKind.DEADLINE, SloKind.COMPOUND) else None,
        user="me",
        weight=2.0,
    )


def promised(program: Program, stage: int, now_s: float, foresight: Foresight = NOTHING) -> Slo:
    [call] = program.stage_calls(stage)
    return slo_of(program, call, now_s, foresight)


def test_a_stream_is_promised_its_own_pace() -> None:
    slo = promised(a_program(SloKind.LATENCY), 0, 10.0)
    assert (slo.kind, slo.ttft_s, slo.tbt_s) == (SloKind.LATENCY, 1.5, 0.05)
    assert (slo.user, slo.weight, slo.length) == ("me", 2.0, None)


def test_a_deadline_counts_from_the_programs_arrival() -> None:
    slo = promised(a_program(SloKind.DEADLINE), 0, 25.0)
    assert (slo.kind, slo.deadline_s) == (SloKind.DEADLINE, 25.0)


def test_best_effort_is_promised_nothing() -> None:
    slo = promised(a_program(SloKind.BEST_EFFORT), 0, 10.0)
    assert (slo.kind, slo.deadline_s, slo.final_s) == (SloKind.BEST_EFFORT, None, None)


def test_the_stages_that_are_foretold_share_what_is_left() -> None:
    program = a_program(SloKind.COMPOUND, stages=4)
    oracle = Foresight(futures=ORACLE_FUTURES)
    first = promised(program, 0, 10.0, oracle)
    assert (first.deadline_s, first.final_s) == (10.0, 40.0)
    assert first.future is not None
    assert first.future.calls == 3
    last = promised(program, 3, 45.0, oracle)
    assert (last.deadline_s, last.final_s, last.stage) == (5.0, 5.0, 3)


def test_without_foresight_every_stage_may_be_the_last() -> None:
    slo = promised(a_program(SloKind.COMPOUND, stages=4), 0, 10.0)
    assert (slo.deadline_s, slo.final_s, slo.future) == (40.0, 40.0, None)


def test_who_comes_too_late_is_still_promised_something_valid() -> None:
    for kind in (SloKind.DEADLINE, SloKind.COMPOUND):
        assert promised(a_program(kind), 0, 99.0).deadline_s == MIN_REMAINING_S


@pytest.mark.parametrize("foresight", [NOTHING, TOLD], ids=["nothing", "told"])
@given(seed=st.integers(0, 99), late_s=st.floats(0, 1e4))
def test_every_promise_fits_the_wire(foresight: Foresight, seed: int, late_s: float) -> None:
    """And a stage's never passes its program's."""
    for program in generate("mixed", rate_per_s=1.0, window_s=3.0, seed=seed):
        for call in program.all_calls():
            slo = slo_of(program, call, program.arrival_s + late_s, foresight)
            assert from_tags(to_tags(slo)) == slo
            if slo.final_s is not None:
                assert slo.deadline_s is not None
                assert slo.deadline_s <= slo.final_s

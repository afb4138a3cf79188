"""What is learned from simulated programs, and what others are predicted with it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from orchestrator.learning.simulated_learning import LearningPredictor, SimulatedLearning
from serving.sim.programs.predictions import ORACLE_FUTURES
from serving.sim.programs.predictor import Predictor
from serving.sim.programs.programs import Call, Program, Stage
from serving.slo import Slo, SloKind

STAGES = (
    Stage((Call(100, 20, step="plan"),)),
    Stage((Call(300, 50, step="search"), Call(300, 80, step="search")), tool_s=2.0),
    Stage((Call(900, 200, step="answer"),)),
)
TOKEN_S = 0.1
"""Seconds of a call by its answer's tokens; its prompt takes no time."""

STARTED_S = (0.0, 4.0, 12.0)
"""When the stages begin if nothing waits; the last one ends at 32 s."""

MAX_TOKENS = 512


def a_program(
    name: str = "p",
    *,
    kind: SloKind = SloKind.COMPOUND,
    answer: int = 200,
    arrival_s: float = 0.0,
) -> Program:
    """A run with a last answer of this length; of other kinds a single call."""
    answers = (STAGES[2].calls[0]._replace(output_tokens=answer),)
    is_compound = kind is SloKind.COMPOUND
    return Program(
        id=name,
        application="research",
        kind=kind,
        arrival_s=arrival_s,
        stages=(*STAGES[:2], Stage(answers)) if is_compound else (Stage(answers),),
        deadline_s=None if kind is SloKind.LATENCY else 64.0,
        user="me",
        weight=2.0,
    )


def run(program: Program, predictor: Predictor) -> list[Slo]:
    """Run a program without waiting; returns the SLO of each call, in their order."""
    now_s, slos = program.arrival_s, []
    for index, stage in enumerate(program.stages):
        now_s += stage.tool_s
        calls = list(program.stage_calls(index))
        slos += [predictor.slo_of(program, call, now_s) for call in calls]
        for call in calls:
            ended_s = now_s + TOKEN_S * call.call.output_tokens
            predictor.call_ended(program, call, began_s=now_s, now_s=ended_s)
        now_s += TOKEN_S * max(call.output_tokens for call in stage.calls)
    return slos


def taught(learning: SimulatedLearning, num_runs: int) -> LearningPredictor:
    """What is known after some runs, one after another."""
    recorder = learning.recorder(max_tokens=MAX_TOKENS)
    for number in range(num_runs):
        run(a_program(f"past-{number}", arrival_s=40.0 * number), recorder)
    return recorder.learned()


@pytest.mark.parametrize("num_runs", [1, 100])
def test_a_run_like_all_past_ones_has_their_shares_and_their_future(num_runs: int) -> None:
    program = a_program()
    slos = run(program, taught(SimulatedLearning(), num_runs))
    first_of_stage = [slos[0], slos[1], slos[3]]
    for stage, slo in enumerate(first_of_stage):
        truth = ORACLE_FUTURES.future(program, stage, token_s=TOKEN_S, prefill_token_s=0.0)
        assert slo.future == pytest.approx(truth, rel=0.02)
        assert slo.stage_calls == len(program.stages[stage].calls)
        assert slo.final_s == pytest.approx(64.0 - STARTED_S[stage])
    # On schedule, a stage is due at its share of the deadline, which is twice what it took.
    due_s = [at + slo.deadline_s for at, slo in zip(STARTED_S, first_of_stage, strict=True)]
    left = [(64.0 - at) / (32.0 - at) for at in STARTED_S]
    expected = [
        at + factor * took for at, factor, took in zip(STARTED_S, left, (2, 8, 20), strict=True)
    ]
    assert due_s == pytest.approx(expected, rel=0.02)
    assert {(slo.program, slo.user, slo.weight, slo.kind) for slo in slos} == {
        ("p", "me", 2.0, SloKind.COMPOUND)
    }


def test_lengths_are_known_after_ten_calls_of_a_step() -> None:
    assert all(slo.length is None for slo in run(a_program(), taught(SimulatedLearning(), 4)))
    lengths = [slo.length for slo in run(a_program(), taught(SimulatedLearning(), 12))]
    assert [length and length.upper(0.5) for length in lengths] == pytest.approx(
        [20, 65, 65, 200], rel=0.3
    )


def test_from_200_calls_on_a_forest_predicts_lengths() -> None:
    predictor = taught(SimulatedLearning(), 50)
    lengths = [slo.length for slo in run(a_program(), predictor)]
    assert [length and length.upper(0.5) for length in lengths] == pytest.approx(
        [20, 65, 65, 200], rel=0.3
    )


def test_nothing_is_predicted_before_the_first_run_and_for_another_application() -> None:
    nothing = SimulatedLearning().recorder(max_tokens=MAX_TOKENS).learned()
    other = replace(a_program(), application="other")
    for slos in (
        run(a_program(), nothing),
        run(other, taught(SimulatedLearning(), 12)),
        run(a_program(), SimulatedLearning().recorder(max_tokens=MAX_TOKENS)),
    ):
        assert {(slo.future, slo.length) for slo in slos} == {(None, None)}
        assert all(slo.deadline_s == slo.final_s for slo in slos)


def test_no_prediction_depends_on_how_the_program_will_go_on() -> None:
    predictor = taught(SimulatedLearning(), 12)
    short, long = (run(a_program(f"p{n}", answer=n), predictor) for n in (10, 500))
    assert [replace(slo, program="") for slo in short] == [replace(slo, program="") for slo in long]


def test_what_ends_after_the_fit_is_not_learned() -> None:
    predictor = taught(SimulatedLearning(), 12)
    before = run(a_program(), predictor)
    for number in range(50):
        run(a_program(f"later-{number}", answer=500), predictor)
    assert run(a_program(), predictor) == before


def test_each_ingredient_can_be_left_out() -> None:
    no_futures = run(a_program(), taught(SimulatedLearning(has_futures=False), 12))
    assert all(slo.future is None and slo.length is not None for slo in no_futures)
    no_lengths = run(a_program(), taught(SimulatedLearning(has_lengths=False), 12))
    assert all(slo.future is not None and slo.length is None for slo in no_lengths)


@pytest.mark.parametrize("kind", [SloKind.LATENCY, SloKind.DEADLINE])
def test_a_single_call_keeps_its_own_slo_and_has_a_length(kind: SloKind) -> None:
    recorder = SimulatedLearning().recorder(max_tokens=MAX_TOKENS)
    for number in range(12):
        run(a_program(f"past-{number}", kind=kind), recorder)
    [slo] = run(a_program(kind=kind), recorder.learned())
    assert (slo.kind, slo.future) == (kind, None)
    assert slo.length is not None
    assert slo.length.upper(0.5) == pytest.approx(200, rel=0.1)


def test_a_program_that_was_dropped_leaves_its_lengths_but_no_pattern() -> None:
    recorder = SimulatedLearning().recorder(max_tokens=MAX_TOKENS)
    for number in range(12):
        program = a_program(f"past-{number}")
        [call] = program.stage_calls(0)
        recorder.slo_of(program, call, 0.0)
        recorder.call_ended(program, call, began_s=0.0, now_s=2.0)
    first, *later = run(a_program(), recorder.learned())
    assert first.length is not None
    assert all(slo.length is None for slo in later)
    assert first.future is None


def test_a_call_that_several_replicas_get_begins_once() -> None:
    predictor = taught(SimulatedLearning(), 12)
    program = a_program()
    [call] = program.stage_calls(0)
    first = predictor.slo_of(program, call, 0.0)
    again = predictor.slo_of(program, call, 1.0)
    assert first.deadline_s is not None
    assert again.deadline_s == pytest.approx(first.deadline_s - 1.0)
    assert again.length == first.length
    assert math.isclose(again.final_s or 0.0, 63.0)


def test_the_key_has_what_predictions_depend_on() -> None:
    keys = [
        SimulatedLearning(has_lengths=lengths, has_futures=futures).key()
        for lengths in (True, False)
        for futures in (True, False)
    ]
    assert len({str(sorted(key.items())) for key in keys}) == 4
    assert len({key["learning"] for key in keys}) == 1

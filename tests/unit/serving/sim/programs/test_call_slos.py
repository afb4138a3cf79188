"""The SLO that each call of a simulated program carries."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.programs.call_slos import MIN_REMAINING_S, Predictions
from serving.sim.programs.predictions import (
    ORACLE_FUTURES,
    ORACLE_LENGTHS,
    FutureErrors,
    LengthErrors,
)
from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.workloads.load_generator import Source
from serving.sim.workloads.workloads import generate
from serving.slo import Slo, SloKind, from_tags, to_tags
from serving.step_cost import StepCost
from tests.unit.serving.sim.bench_examples import FifoEngine

NONE = Predictions()
ORACLE = Predictions(lengths=ORACLE_LENGTHS, futures=ORACLE_FUTURES)
NOISY = Predictions(lengths=LengthErrors(), futures=FutureErrors())


def make_program(kind: SloKind, stages: int = 1) -> Program:
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


def stage_slo(program: Program, stage: int, now_s: float, predictions: Predictions = NONE) -> Slo:
    [call] = program.stage_calls(stage)
    return predictions.slo_of(program, call, now_s)


class RecordingEngine(FifoEngine):
    """Records each call's length and its max_tokens, which policies see."""

    def __init__(self) -> None:
        super().__init__(slots=256)
        self.lengths: set[int] = set()
        self.limits: set[int] = set()

    def submit(
        self, request_id: str, *, output_tokens: int, max_tokens: int, **request: Any
    ) -> None:
        self.lengths.add(output_tokens)
        self.limits.add(max_tokens)
        super().submit(request_id, output_tokens=output_tokens, max_tokens=max_tokens, **request)


@pytest.mark.parametrize("source_name", ["mixed", "reasoning", "trace"])
@pytest.mark.parametrize("predictions", ["noisy", "none"])
def test_max_tokens_is_the_same_for_a_short_answer_and_for_the_longest(
    source_name: str, predictions: str, tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    rows = [{"timestamp": 500 * n, "input_length": 9, "output_length": n * n} for n in range(181)]
    path.write_text("\n".join(map(json.dumps, rows)))
    config = ExperimentConfig(
        source=Source.file(path) if source_name == "trace" else Source.generator(source_name),
        predictions=predictions,
    )
    programs = config.backlog(num_programs=181 if source_name == "trace" else 1500, seed=0)
    longest_last = sorted(programs, key=longest_answer)
    extremes = (longest_last[0], longest_last[-1])
    clock, engine = VirtualTime(), RecordingEngine()
    cost = StepCost(name="", source="", uncertainty="", fixed_s=0.01)
    replay(extremes, engine, clock, cost, predictor=config.predictions_of(0), until_s=math.inf)
    assert engine.limits == {config.source.max_tokens}
    assert min(engine.lengths) < 3000
    assert 4096 <= max(engine.lengths) <= config.source.max_tokens


def longest_answer(program: Program) -> int:
    return max(call.call.output_tokens for call in program.all_calls())


def test_the_call_of_a_stream_has_its_ttft_and_tbt() -> None:
    slo = stage_slo(make_program(SloKind.LATENCY), 0, 10.0)
    assert (slo.kind, slo.ttft_s, slo.tbt_s) == (SloKind.LATENCY, 1.5, 0.05)
    assert (slo.user, slo.weight, slo.length) == ("me", 2.0, None)


def test_a_deadline_counts_from_the_programs_arrival() -> None:
    slo = stage_slo(make_program(SloKind.DEADLINE), 0, 25.0)
    assert (slo.kind, slo.deadline_s) == (SloKind.DEADLINE, 25.0)


def test_best_effort_has_no_deadline() -> None:
    slo = stage_slo(make_program(SloKind.BEST_EFFORT), 0, 10.0)
    assert (slo.kind, slo.deadline_s, slo.final_s) == (SloKind.BEST_EFFORT, None, None)


def test_a_stage_shares_the_remaining_time_with_the_predicted_later_stages() -> None:
    program = make_program(SloKind.COMPOUND, stages=4)
    oracle = Predictions(futures=ORACLE_FUTURES)
    first = stage_slo(program, 0, 10.0, oracle)
    assert (first.deadline_s, first.final_s) == (10.0, 40.0)
    assert first.future is not None
    assert first.future.calls == 3
    last = stage_slo(program, 3, 45.0, oracle)
    assert (last.deadline_s, last.final_s, last.stage) == (5.0, 5.0, 3)


@pytest.mark.parametrize("widths", [(3, 3, 3, 3, 1), (1, 3, 1), (1, 1, 1, 8)])
def test_stages_of_any_width_get_even_shares(widths: tuple[int, ...]) -> None:
    """The evaluation stage before the last stage of a tree gets half of the remaining time."""
    program = replace(
        make_program(SloKind.COMPOUND),
        stages=tuple(Stage((Call(100, 50),) * width) for width in widths),
    )
    oracle = Predictions(futures=ORACLE_FUTURES)
    for stage in range(len(widths)):
        call, *_ = program.stage_calls(stage)
        slo = oracle.slo_of(program, call, 10.0)
        assert slo.deadline_s == pytest.approx(40.0 / (len(widths) - stage))


def test_the_predicted_number_of_later_stages_has_the_same_error_as_the_future() -> None:
    program = make_program(SloKind.COMPOUND, stages=4)
    for seed in range(20):
        slo = stage_slo(program, 1, 10.0, Predictions(futures=FutureErrors(bias=1.5, seed=seed)))
        assert slo.future is not None
        assert slo.deadline_s == pytest.approx(40.0 / (1 + slo.future.calls))


def test_without_predictions_every_stage_gets_all_of_the_remaining_time() -> None:
    slo = stage_slo(make_program(SloKind.COMPOUND, stages=4), 0, 10.0)
    assert (slo.deadline_s, slo.final_s, slo.future) == (40.0, 40.0, None)


def test_a_call_past_its_deadline_still_has_a_valid_slo() -> None:
    for kind in (SloKind.DEADLINE, SloKind.COMPOUND):
        assert stage_slo(make_program(kind), 0, 99.0).deadline_s == MIN_REMAINING_S


@pytest.mark.parametrize("predictions", [NONE, NOISY], ids=["none", "noisy"])
@given(seed=st.integers(0, 99), late_s=st.floats(0, 1e4))
def test_every_slo_survives_conversion_to_tags(
    predictions: Predictions, seed: int, late_s: float
) -> None:
    """A stage's deadline is also never later than its program's."""
    for program in generate("mixed", rate_per_s=1.0, window_s=3.0, seed=seed):
        for call in program.all_calls():
            slo = predictions.slo_of(program, call, program.arrival_s + late_s)
            assert from_tags(to_tags(slo)) == slo
            if slo.final_s is not None:
                assert slo.deadline_s is not None
                assert slo.deadline_s <= slo.final_s


def test_an_answer_in_two_parts_has_a_prediction_of_each() -> None:
    thinking = replace(
        make_program(SloKind.DEADLINE),
        stages=(Stage((Call(100, 50, then_from=30),)),),
        then_tbt_s=0.2,
    )
    slo = stage_slo(thinking, 0, 20.0, ORACLE)
    assert (slo.kind, slo.deadline_s, slo.then_tbt_s) == (SloKind.DEADLINE, 30.0, 0.2)
    assert slo.length is not None
    assert slo.then_length is not None
    assert (slo.length.upper(0.5), slo.then_length.upper(0.5)) == (30.0, 20.0)


def test_a_last_call_that_is_a_stream_has_the_time_left_until_its_first_token() -> None:
    stage = Stage((Call(100, 50),))
    program = replace(
        make_program(SloKind.COMPOUND, 2),
        stages=(stage, Stage((Call(100, 50, then_from=0),))),
        then_tbt_s=0.2,
    )
    first, last = (stage_slo(program, each, 20.0, ORACLE) for each in (0, 1))
    assert (first.kind, first.final_s) == (SloKind.COMPOUND, 30.0)
    assert first.future is not None
    assert (first.future.decode_tokens, first.future.serial_tokens) == (50.0, 0.0)
    assert (last.kind, last.final_s, last.then_tbt_s) == (SloKind.COMPOUND, 30.0, 0.2)
    assert last.then_token is last.then_length is None
    assert last.length is not None
    assert last.length.upper(0.5) == 50.0

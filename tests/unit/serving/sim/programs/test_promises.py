"""What each call of a simulated program is promised."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.programs.predictions import ORACLE_FUTURES, FutureErrors, LengthErrors
from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.programs.promises import MIN_REMAINING_S, Predictions, slo_of
from serving.sim.workloads.load_generator import Source
from serving.sim.workloads.workloads import generate
from serving.slo import Slo, SloKind, from_tags, to_tags
from serving.step_cost import StepCost
from tests.unit.serving.sim.bench_examples import FifoEngine

NOTHING = Predictions()
TOLD = Predictions(lengths=LengthErrors(), futures=FutureErrors())


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


def promised(program: Program, stage: int, now_s: float, predictions: Predictions = NOTHING) -> Slo:
    [call] = program.stage_calls(stage)
    return slo_of(program, call, now_s, predictions)


class WatchedEngine(FifoEngine):
    """Remembers each call's length and the limit that a policy would see."""

    def __init__(self) -> None:
        super().__init__(slots=256)
        self.lengths: set[int] = set()
        self.limits: set[int] = set()

    def submit(
        self, request_id: str, *, prompt: list[int], output_tokens: int, slo: Slo, max_tokens: int
    ) -> None:
        self.lengths.add(output_tokens)
        self.limits.add(max_tokens)
        super().submit(
            request_id, prompt=prompt, output_tokens=output_tokens, slo=slo, max_tokens=max_tokens
        )


@pytest.mark.parametrize("sort", ["mixed", "reasoning", "trace"])
@pytest.mark.parametrize("predictions", ["learned", "none"])
def test_the_limit_is_the_same_for_a_short_answer_and_for_the_longest(
    sort: str, predictions: str, tmp_path: Path
) -> None:
    path = tmp_path / "requests.jsonl"
    rows = [{"timestamp": 500 * n, "input_length": 9, "output_length": n * n} for n in range(181)]
    path.write_text("\n".join(map(json.dumps, rows)))
    setting = ExperimentConfig(
        source=Source.file(path) if sort == "trace" else Source.generator(sort),
        predictions=predictions,
    )
    programs = setting.backlog(num_programs=181 if sort == "trace" else 1500, seed=0)
    longest_last = sorted(programs, key=longest_answer)
    two = (longest_last[0], longest_last[-1])
    clock, engine = VirtualTime(), WatchedEngine()
    cost = StepCost(name="", source="", uncertainty="", fixed_s=0.01)
    replay(two, engine, clock, cost, predictions=setting.predictions_of(0), until_s=math.inf)
    assert engine.limits == {setting.source.max_tokens}
    assert min(engine.lengths) < 3000
    assert 4096 <= max(engine.lengths) <= setting.source.max_tokens


def longest_answer(program: Program) -> int:
    return max(call.call.output_tokens for call in program.all_calls())


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
    oracle = Predictions(futures=ORACLE_FUTURES)
    first = promised(program, 0, 10.0, oracle)
    assert (first.deadline_s, first.final_s) == (10.0, 40.0)
    assert first.future is not None
    assert first.future.calls == 3
    last = promised(program, 3, 45.0, oracle)
    assert (last.deadline_s, last.final_s, last.stage) == (5.0, 5.0, 3)


@pytest.mark.parametrize("widths", [(3, 3, 3, 3, 1), (1, 3, 1), (1, 1, 1, 8)])
def test_stages_of_any_width_get_even_shares(widths: tuple[int, ...]) -> None:
    """The last judging stage of a tree has half of the time left: one stage is to come."""
    program = replace(
        a_program(SloKind.COMPOUND),
        stages=tuple(Stage((Call(100, 50),) * width) for width in widths),
    )
    oracle = Predictions(futures=ORACLE_FUTURES)
    for stage in range(len(widths)):
        call, *_ = program.stage_calls(stage)
        slo = slo_of(program, call, 10.0, oracle)
        assert slo.deadline_s == pytest.approx(40.0 / (len(widths) - stage))


def test_later_stages_are_foretold_with_the_error_of_all_that_is_foretold() -> None:
    program = a_program(SloKind.COMPOUND, stages=4)
    for seed in range(20):
        slo = promised(program, 1, 10.0, Predictions(futures=FutureErrors(bias=1.5, seed=seed)))
        assert slo.future is not None
        assert slo.deadline_s == pytest.approx(40.0 / (1 + slo.future.calls))


def test_without_foresight_every_stage_may_be_the_last() -> None:
    slo = promised(a_program(SloKind.COMPOUND, stages=4), 0, 10.0)
    assert (slo.deadline_s, slo.final_s, slo.future) == (40.0, 40.0, None)


def test_who_comes_too_late_is_still_promised_something_valid() -> None:
    for kind in (SloKind.DEADLINE, SloKind.COMPOUND):
        assert promised(a_program(kind), 0, 99.0).deadline_s == MIN_REMAINING_S


@pytest.mark.parametrize("predictions", [NOTHING, TOLD], ids=["nothing", "told"])
@given(seed=st.integers(0, 99), late_s=st.floats(0, 1e4))
def test_every_promise_fits_the_wire(predictions: Predictions, seed: int, late_s: float) -> None:
    """And a stage's never passes its program's."""
    for program in generate("mixed", rate_per_s=1.0, window_s=3.0, seed=seed):
        for call in program.all_calls():
            slo = slo_of(program, call, program.arrival_s + late_s, predictions)
            assert from_tags(to_tags(slo)) == slo
            if slo.final_s is not None:
                assert slo.deadline_s is not None
                assert slo.deadline_s <= slo.final_s

"""Programs without SLOs or with loose ones: their calls stay the same, only the SLOs change."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from benchmarks.loose_slos import (
    LOOSER,
    LooseExperiment,
    PatientEngine,
    all_finished,
    loosened,
    untagged,
)
from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.programs import Program
from serving.sim.workloads.load_generator import Source
from serving.sim.workloads.workloads import generate
from serving.slo import BEST_EFFORT, Slo, SloKind
from serving.step_cost import Composition
from tests.unit.serving.sim.bench_examples import FifoEngine

MIXED = ExperimentConfig(source=Source.generator("mixed"), window_s=8.0, warmup_s=2.0)
EXPERIMENT = LooseExperiment(
    config=MIXED, policy=PolicySpec("fcfs"), rate_per_s=1.5, seed=0, is_tagged=False
)


def mixed_programs() -> tuple[Program, ...]:
    programs = generate("mixed", rate_per_s=2.0, window_s=30.0, seed=3)
    assert {each.kind for each in programs} == {
        SloKind.LATENCY,
        SloKind.DEADLINE,
        SloKind.COMPOUND,
    }
    return programs


def test_an_untagged_program_has_the_same_calls_and_no_tags() -> None:
    programs = mixed_programs()
    for program, plain in zip(programs, untagged(programs), strict=True):
        assert (plain.id, plain.arrival_s, plain.stages) == (
            program.id,
            program.arrival_s,
            program.stages,
        )
        for call in plain.all_calls():
            assert Predictions().slo_of(plain, call, plain.arrival_s) == BEST_EFFORT


def test_loosening_multiplies_all_times_of_the_slo_and_nothing_else() -> None:
    programs = mixed_programs()
    for program, loose in zip(programs, loosened(programs), strict=True):
        assert loose.ttft_s == LOOSER * program.ttft_s
        assert loose.tbt_s == LOOSER * program.tbt_s
        if program.deadline_s is not None:
            assert loose.deadline_s == LOOSER * program.deadline_s
        restored = replace(
            loose, ttft_s=program.ttft_s, tbt_s=program.tbt_s, deadline_s=program.deadline_s
        )
        assert restored == program


def test_the_patient_engine_multiplies_the_limit_on_waiting_if_there_is_one() -> None:
    class RecordingEngine(FifoEngine):
        def __init__(self) -> None:
            super().__init__()
            self.slos: list[Slo] = []

        def submit(self, request_id: str, *, slo: Slo, **request: Any) -> None:
            self.slos.append(slo)
            super().submit(request_id, slo=slo, **request)

    inner = RecordingEngine()
    engine = PatientEngine(inner, lambda _: False)
    for name, slo in (("a", Slo(kind=SloKind.LATENCY, waiting_s=5.0)), ("b", BEST_EFFORT)):
        engine.submit(name, prompt=[1], output_tokens=1, slo=slo, max_tokens=1)
    assert [slo.waiting_s for slo in inner.slos] == [5.0 * LOOSER, None]
    assert engine.plan_step() == Composition(2, 2, 0, ())
    engine.finish_step()
    assert not engine.has_work


def test_different_experiments_have_different_keys() -> None:
    changed = [
        replace(EXPERIMENT, seed=1),
        replace(EXPERIMENT, rate_per_s=1.6),
        replace(EXPERIMENT, is_tagged=True),
        replace(EXPERIMENT, policy=PolicySpec("edf")),
        replace(EXPERIMENT, config=replace(MIXED, predictions="oracle")),
        replace(EXPERIMENT, config=replace(MIXED, window_s=9.0)),
    ]
    keys = {json.dumps(each.key(), sort_keys=True) for each in (EXPERIMENT, *changed)}
    assert len(keys) == 1 + len(changed)


@pytest.mark.usefixtures("imported_vllm")
@pytest.mark.parametrize("is_tagged", [False, True])
def test_a_run_continues_until_every_program_has_completed(is_tagged: bool) -> None:
    experiment = replace(EXPERIMENT, is_tagged=is_tagged)
    result = experiment.run()
    assert result["arrived"] > 0
    assert all_finished([result])
    assert result["throughput_tokens_s"] > 0
    assert result["mean_e2el_s"] > 1.0
    assert experiment.run() == result

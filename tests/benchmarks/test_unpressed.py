"""Programs that no deadline presses: what they ask stays, what they are promised goes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from benchmarks.unpressed import (
    LOOSER,
    PatientEngine,
    Unpressed,
    all_finished,
    loosened,
    untagged,
)
from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.programs.programs import Program
from serving.sim.programs.promises import Predictions, slo_of
from serving.sim.workloads.load_generator import Source
from serving.sim.workloads.workloads import generate
from serving.slo import BEST_EFFORT, Slo, SloKind
from serving.step_cost import Composition
from tests.unit.serving.sim.bench_examples import FifoEngine

MIXED = ExperimentConfig(source=Source.generator("mixed"), window_s=8.0, warmup_s=2.0)
TASK = Unpressed(setting=MIXED, policy=PolicySpec("fcfs"), rate_per_s=1.5, seed=0, is_tagged=False)


def some_programs() -> tuple[Program, ...]:
    programs = generate("mixed", rate_per_s=2.0, window_s=30.0, seed=3)
    assert {each.kind for each in programs} == {
        SloKind.LATENCY,
        SloKind.DEADLINE,
        SloKind.COMPOUND,
    }
    return programs


def test_an_untagged_program_asks_the_same_and_tells_the_engine_nothing() -> None:
    programs = some_programs()
    for program, bare in zip(programs, untagged(programs), strict=True):
        assert (bare.id, bare.arrival_s, bare.stages) == (
            program.id,
            program.arrival_s,
            program.stages,
        )
        for call in bare.all_calls():
            assert slo_of(bare, call, bare.arrival_s, Predictions()) == BEST_EFFORT


def test_every_promised_time_of_a_loosened_program_is_as_many_times_longer() -> None:
    programs = some_programs()
    for program, loose in zip(programs, loosened(programs), strict=True):
        assert loose.ttft_s == LOOSER * program.ttft_s
        assert loose.tbt_s == LOOSER * program.tbt_s
        if program.deadline_s is not None:
            assert loose.deadline_s == LOOSER * program.deadline_s
        same = replace(
            loose, ttft_s=program.ttft_s, tbt_s=program.tbt_s, deadline_s=program.deadline_s
        )
        assert same == program


def test_patience_is_longer_where_there_is_a_limit_to_it() -> None:
    class Noting(FifoEngine):
        def __init__(self) -> None:
            super().__init__()
            self.slos: list[Slo] = []

        def submit(
            self,
            request_id: str,
            *,
            prompt: list[int],
            output_tokens: int,
            slo: Slo,
            max_tokens: int,
        ) -> None:
            self.slos.append(slo)
            super().submit(
                request_id,
                prompt=prompt,
                output_tokens=output_tokens,
                slo=slo,
                max_tokens=max_tokens,
            )

    inner = Noting()
    engine = PatientEngine(inner, lambda _: False)
    for name, slo in (("a", Slo(kind=SloKind.LATENCY, waiting_s=5.0)), ("b", BEST_EFFORT)):
        engine.submit(name, prompt=[1], output_tokens=1, slo=slo, max_tokens=1)
    assert [slo.waiting_s for slo in inner.slos] == [5.0 * LOOSER, None]
    assert engine.plan_step() == Composition(2, 2, 0, ())
    engine.finish_step()
    assert not engine.has_work


def test_no_two_tasks_share_a_key() -> None:
    changed = [
        replace(TASK, seed=1),
        replace(TASK, rate_per_s=1.6),
        replace(TASK, is_tagged=True),
        replace(TASK, policy=PolicySpec("edf")),
        replace(TASK, setting=replace(MIXED, predictions="oracle")),
        replace(TASK, setting=replace(MIXED, window_s=9.0)),
    ]
    keys = {json.dumps(task.key(), sort_keys=True) for task in (TASK, *changed)}
    assert len(keys) == 1 + len(changed)


@pytest.mark.usefixtures("imported_vllm")
@pytest.mark.parametrize("is_tagged", [False, True])
def test_every_program_is_followed_to_its_end(is_tagged: bool) -> None:
    task = replace(TASK, is_tagged=is_tagged)
    found = task.run()
    assert found["arrived"] > 0
    assert all_finished([found])
    assert found["throughput_tokens_s"] > 0
    assert found["mean_e2el_s"] > 1.0
    assert task.run() == found

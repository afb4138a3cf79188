"""Learned predictions in the loop: a first period is recorded, and predicts the programs after."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.learning.simulated_learning import SimulatedLearning
from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig, FirstPeriod
from serving.sim.compare.experiments import Experiment, recorded_first_period
from serving.sim.workloads.load_generator import Source
from serving.workload_errors import InvalidWorkload

pytestmark = pytest.mark.usefixtures("imported_vllm")

NONE = ExperimentConfig(
    source=Source.generator("compound"), predictions="none", window_s=30.0, warmup_s=10.0
)
RATE_PER_S = 3.0
"""Twice what the machine can serve."""


def learned(num_runs: int, *, source: Source | None = None) -> ExperimentConfig:
    period = FirstPeriod(learning=SimulatedLearning(), num_runs=num_runs, source=source)
    return replace(NONE, predictions="learned", first_period=period)


def document(config: ExperimentConfig, *, policy: str = "calm", load: float = 2.0) -> Any:
    experiment = Experiment(
        config=config,
        policy=PolicySpec(policy),
        load=load,
        rate_per_s=RATE_PER_S * load / 2.0,
        seed=0,
    )
    result = experiment.run()
    result["report"].pop("schedule_ms_per_step")
    return result


def test_without_past_runs_learned_predictions_are_none() -> None:
    assert document(learned(0)) == document(NONE)


def test_calm_keeps_more_promises_with_what_it_learned_and_always_the_same() -> None:
    results = [document(learned(60)) for _ in range(2)]
    assert json.dumps(results[0]) == json.dumps(results[1])
    none = document(NONE)
    goodput = results[0]["report"]["request_goodput"]
    assert goodput > 1.2 * none["report"]["request_goodput"] > 0


def test_all_policies_and_loads_know_the_same() -> None:
    recorded_first_period.cache_clear()
    config = learned(20)
    for policy, load in (("calm", 2.0), ("edf", 2.0), ("edf", 1.0)):
        document(config, policy=policy, load=load)
    assert recorded_first_period.cache_info().misses == 1


def test_the_programs_of_the_first_period_are_others() -> None:
    first = learned(40).first_programs(rate_per_s=RATE_PER_S, seed=0)
    measured = NONE.generate_load(rate_per_s=RATE_PER_S, seed=0).programs
    assert len(first) == 40
    assert not {program.stages for program in first} & {program.stages for program in measured}


def test_a_trace_is_learned_from_another_one(tmp_path: Path) -> None:
    def trace(name: str, *, answer: int) -> Source:
        stages = [
            {"state": step, "requests": [{"in": 100, "out": answer}]} for step in ("plan", "write")
        ]
        path = tmp_path / name
        path.write_text(json.dumps({"workflows": [{"stages": stages}] * 3}))
        return Source.file(path)

    measured, others = trace("measured.json", answer=50), trace("others.json", answer=51)
    with pytest.raises(InvalidWorkload, match="--learn-from"):
        replace(learned(20), source=measured)
    config = replace(learned(20, source=others), source=measured)
    first = config.first_programs(rate_per_s=RATE_PER_S, seed=0)
    assert {call.call.output_tokens for program in first for call in program.all_calls()} == {51}
    assert document(config)["report"]["request_goodput"] > 0


def test_only_learned_predictions_have_a_first_period() -> None:
    with pytest.raises(InvalidWorkload, match="first period"):
        replace(NONE, predictions="learned")
    with pytest.raises(InvalidWorkload, match="first period"):
        replace(learned(5), predictions="noisy")


def test_the_cache_key_has_the_first_period() -> None:
    keys = [json.dumps(config.predictions_key()) for config in (learned(5), learned(6), NONE)]
    assert len(set(keys)) == 3

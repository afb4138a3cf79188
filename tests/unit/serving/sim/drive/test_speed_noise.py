"""Speed noise: its mean, its deviations, and that it is reproducible."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import fmean, pstdev

import pytest

from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import Experiment
from serving.sim.drive.driver import VirtualTime
from serving.sim.drive.speed_noise import (
    DRIFT_DEVIATION,
    DRIFT_S,
    HICCUP_S,
    HICCUP_SHARE,
    STEP_DEVIATION,
    NoisyCost,
)
from serving.sim.workloads.load_generator import Source
from serving.step_cost import Composition, StepCost

STEADY = StepCost(name="one", source="", uncertainty="", fixed_s=1.0)
STREAMS = ExperimentConfig(source=Source.generator("latency"), window_s=6.0, warmup_s=0.0)


class Steps:
    """Steps that take one second without noise."""

    def __init__(
        self, *, unsteadiness: float = 1.0, seed: int = 0, cost: StepCost = STEADY
    ) -> None:
        self.now_s = 0.0
        self._cost = NoisyCost(cost, lambda: self.now_s, unsteadiness=unsteadiness, seed=seed)

    def at(self, now_s: float) -> float:
        self.now_s = now_s
        return self._cost.seconds(Composition(1, 1, 1, ()))


def test_on_average_over_time_the_machine_is_as_fast_as_the_steady_one() -> None:
    steps = Steps()
    now_s, num_steps = 0.0, 0
    while now_s < 60_000.0:
        now_s += steps.at(now_s)
        num_steps += 1
    assert num_steps / now_s == pytest.approx(1.0 / (1.0 + HICCUP_SHARE * HICCUP_S), rel=0.02)


def test_a_small_share_of_steps_has_a_hiccup() -> None:
    steps = Steps(cost=replace(STEADY, fixed_s=1e-9))
    count = 100_000
    longer = sum(steps.at(1.0) >= HICCUP_S for _ in range(count))
    assert longer / count == pytest.approx(HICCUP_SHARE, rel=0.25)


def test_within_a_second_step_times_vary_less_than_over_minutes() -> None:
    steps = Steps()
    same_second = [math.log(steps.at(5.5)) for _ in range(4000)]
    assert pstdev(same_second) == pytest.approx(STEP_DEVIATION, rel=0.1)
    spread = [math.log(steps.at(5.0 * DRIFT_S * count)) for count in range(1, 4000)]
    assert pstdev(spread) == pytest.approx(math.hypot(STEP_DEVIATION, DRIFT_DEVIATION), rel=0.1)


def test_the_drift_does_not_depend_on_the_number_of_earlier_steps() -> None:
    few, many = Steps(), Steps()
    for second in range(100):
        many.at(float(second))
    means = [fmean(each.at(120.0) for _ in range(2000)) for each in (few, many)]
    assert means[0] == pytest.approx(means[1], rel=0.03)
    assert Steps().at(3.0) == Steps().at(3.0) != Steps(seed=1).at(3.0)


def test_a_low_unsteadiness_is_nearly_steady() -> None:
    assert Steps(unsteadiness=0.01).at(50.0) == pytest.approx(1.0, abs=0.02)


def test_unsteadiness_changes_the_step_cost_and_the_key_of_runs_only() -> None:
    assert STREAMS.step_time(VirtualTime(), seed=0) is STREAMS.machine.step_cost
    unsteady = replace(STREAMS, unsteadiness=1.0)
    assert isinstance(unsteady.step_time(VirtualTime(), seed=0), NoisyCost)
    assert unsteady.key() == STREAMS.key()  # capacities and bounds are the same
    assert unsteady.predictions_key() != STREAMS.predictions_key()


@pytest.mark.usefixtures("imported_vllm")
def test_the_same_seed_gives_the_same_result() -> None:
    experiment = Experiment(
        config=replace(STREAMS, unsteadiness=1.0),
        policy=PolicySpec("calm"),
        load=1.0,
        rate_per_s=1.0,
        seed=0,
    )
    steady = replace(experiment, config=STREAMS)
    documents = [each.run() for each in (experiment, experiment, steady)]
    for document in documents:
        del document["report"]["schedule_ms_per_step"]
    assert documents[0] == documents[1] != documents[2]

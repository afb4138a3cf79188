"""A machine whose speed wanders: how far, for whom, and how often the same."""

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
    """Steps of one second of work, whenever they are asked for."""

    def __init__(
        self, *, unsteadiness: float = 1.0, seed: int = 0, cost: StepCost = STEADY
    ) -> None:
        self.now_s = 0.0
        self._cost = NoisyCost(cost, lambda: self.now_s, unsteadiness=unsteadiness, seed=seed)

    def at(self, now_s: float) -> float:
        self.now_s = now_s
        return self._cost.seconds(Composition(1, 1, 1, ()))


def test_over_time_the_machine_does_as_much_as_the_steady_one() -> None:
    steps = Steps()
    now_s, done = 0.0, 0
    while now_s < 60_000.0:
        now_s += steps.at(now_s)
        done += 1
    assert done / now_s == pytest.approx(1.0 / (1.0 + HICCUP_SHARE * HICCUP_S), rel=0.02)


def test_some_steps_hiccup() -> None:
    steps = Steps(cost=replace(STEADY, fixed_s=1e-9))
    count = 100_000
    longer = sum(steps.at(1.0) >= HICCUP_S for _ in range(count))
    assert longer / count == pytest.approx(HICCUP_SHARE, rel=0.25)


def test_within_a_second_steps_wander_less_than_over_minutes() -> None:
    steps = Steps()
    at_once = [math.log(steps.at(5.5)) for _ in range(4000)]
    assert pstdev(at_once) == pytest.approx(STEP_DEVIATION, rel=0.1)
    later = [math.log(steps.at(5.0 * DRIFT_S * count)) for count in range(1, 4000)]
    assert pstdev(later) == pytest.approx(math.hypot(STEP_DEVIATION, DRIFT_DEVIATION), rel=0.1)


def test_the_drift_is_the_same_however_many_steps_were_made() -> None:
    few, many = Steps(), Steps()
    for second in range(100):
        many.at(float(second))
    near = [fmean(each.at(120.0) for _ in range(2000)) for each in (few, many)]
    assert near[0] == pytest.approx(near[1], rel=0.03)
    assert Steps().at(3.0) == Steps().at(3.0) != Steps(seed=1).at(3.0)


def test_hardly_unsteady_is_nearly_steady() -> None:
    assert Steps(unsteadiness=0.01).at(50.0) == pytest.approx(1.0, abs=0.02)


def test_a_case_is_as_unsteady_as_its_setting_each_time_in_the_same_way() -> None:
    assert STREAMS.costing(VirtualTime(), seed=0) is STREAMS.machine.step_cost
    speed_noise = replace(STREAMS, unsteadiness=1.0)
    assert isinstance(speed_noise.costing(VirtualTime(), seed=0), NoisyCost)
    assert speed_noise.key() == STREAMS.key()  # capacities and bounds are the same
    assert speed_noise.predictions_key() != STREAMS.predictions_key()


@pytest.mark.usefixtures("imported_vllm")
def test_the_same_seed_gives_the_same_bytes() -> None:
    case = Experiment(
        setting=replace(STREAMS, unsteadiness=1.0),
        policy=PolicySpec("calm"),
        load=1.0,
        rate_per_s=1.0,
        seed=0,
    )
    found = [each.run() for each in (case, case, replace(case, setting=STREAMS))]
    for document in found:
        del document["report"]["schedule_ms_per_step"]
    assert found[0] == found[1] != found[2]

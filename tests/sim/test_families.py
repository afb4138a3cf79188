"""The further kinds of work on the production scheduler, in virtual time."""

from __future__ import annotations

import pytest

from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.compare.experiments import BoundExperiment, Experiment, bound_of
from serving.sim.workloads.families import FAMILIES
from serving.sim.workloads.load_generator import Source

pytestmark = [pytest.mark.usefixtures("imported_vllm"), pytest.mark.slow]

RATES_PER_S = {"tiny": 40.0, "code_completion": 5.0, "two_tiers": 2.0, "long_agents": 0.1}
"""Programs per second that the machine can serve; 0.5 where there is no other."""


@pytest.mark.parametrize("name", FAMILIES)
def test_an_idle_machine_earns_something_and_no_more_than_the_bound(name: str) -> None:
    config = ExperimentConfig(
        source=Source.generator(name),
        window_s=20.0 if name == "long_agents" else 6.0,
        warmup_s=0.0,
        prefix_caching=name == "long_agents",
    )
    rate_per_s = RATES_PER_S.get(name, 0.5)
    bound = BoundExperiment(config=config, load=1.0, rate_per_s=rate_per_s, seed=10).run()
    experiment = Experiment(
        config=config, policy=PolicySpec("edf"), load=1.0, rate_per_s=rate_per_s, seed=10
    )
    report = experiment.run()["report"]
    assert report["counts"]["arrived"] > 0
    earned = report["token_goodput"], report["request_goodput"]
    for value, limit in zip(earned, bound_of(bound), strict=True):
        assert 0 < value <= limit * (1 + 1e-6)

"""The policies' goodput on the production scheduler, in virtual time, against the upper bound."""

from __future__ import annotations

import pytest

from serving.policies.table import PolicySpec
from serving.sim.bound.bound import Bound, upper_bound
from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.metrics.metrics import Report, summarise
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.programs import Program
from serving.sim.workloads.workloads import generate
from serving.step_cost import MACHINES

pytestmark = pytest.mark.usefixtures("imported_vllm")

MACHINE = MACHINES["a100-llama3-8b"]
WINDOW_S = (0.0, 10.0)


@pytest.fixture(scope="module", params=[(1.5, 1), (6.0, 2)], ids=["calm", "busy"])
def programs(request: pytest.FixtureRequest) -> tuple[Program, ...]:
    rate_per_s, seed = request.param
    return generate("mixed", rate_per_s=rate_per_s, window_s=WINDOW_S[1], seed=seed)


@pytest.fixture(scope="module")
def bound(programs: tuple[Program, ...]) -> Bound:
    return upper_bound(programs, MACHINE, window_s=WINDOW_S)


@pytest.mark.parametrize("policy", ["edf", "calm"])
def test_no_policy_exceeds_the_bound(
    policy: str, programs: tuple[Program, ...], bound: Bound
) -> None:
    report = run(policy, programs)
    assert 0 < report.token_goodput <= bound.token_goodput
    assert 0 < report.request_goodput <= bound.request_goodput


def test_no_policy_exceeds_the_bound_with_prefix_caching() -> None:
    """The loops of `tools` repeat the whole conversation in each prompt."""
    loops = generate("tools", rate_per_s=12.0, window_s=WINDOW_S[1], seed=1)
    bound = upper_bound(loops, MACHINE, window_s=WINDOW_S, prefix_caching=True)
    report = run("calm", loops, prefix_caching=True)
    assert 0 < report.token_goodput <= bound.token_goodput
    assert 0 < report.request_goodput <= bound.request_goodput


def run(policy: str, programs: tuple[Program, ...], *, prefix_caching: bool = False) -> Report:
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    clock = VirtualTime()
    config = VirtualConfig(policy=PolicySpec(policy), prefix_caching=prefix_caching)
    engine = VirtualEngine(config, clock)
    learned = Predictions(lengths=LengthErrors(), futures=FutureErrors())
    replayed = replay(programs, engine, clock, MACHINE.step_cost, predictor=learned, until_s=100.0)
    return summarise(replayed.programs, window_s=WINDOW_S)

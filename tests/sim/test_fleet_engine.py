"""Several production schedulers in one virtual time; each call runs on exactly one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serving.policies.table import PolicySpec
from serving.router.table import RouterSpec
from serving.sim.drive.driver import Replay, VirtualTime, replay
from serving.sim.drive.fleet import FleetReplay, run_fleet
from serving.sim.drive.replica import Replica
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.programs import Program
from serving.sim.workloads.workloads import generate
from serving.step_cost import STEP_COSTS

pytestmark = pytest.mark.usefixtures("imported_vllm")

COST = STEP_COSTS["a100-llama3-8b"]
LEARNED = Predictions(lengths=LengthErrors(), futures=FutureErrors())
UNTIL_S = 8.0
SLOTS = 24  # few enough that requests queue, so that copies wait and are withdrawn


@pytest.fixture(scope="module")
def busy() -> tuple[Program, ...]:
    """Mixed work at twice the capacity of two of these replicas."""
    return generate("mixed", rate_per_s=4.0, window_s=7.0, seed=3)


def run(
    programs: tuple[Program, ...], router: RouterSpec, num_replicas: int, policy: str = "edf"
) -> FleetReplay:
    from serving.sim.drive.steady_engine import VirtualReplica
    from serving.sim.drive.virtual_engine import VirtualConfig

    config = VirtualConfig(policy=PolicySpec(policy), slots=SLOTS)
    replicas = []
    for number in range(num_replicas):
        clock = VirtualTime()
        engine = VirtualReplica(config, clock)
        replicas.append(Replica(f"{number:02d}", engine, clock, COST))
    return run_fleet(programs, replicas, router.build(), predictor=LEARNED, until_s=UNTIL_S)


def run_single_engine(programs: tuple[Program, ...], policy: str) -> Replay:
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    clock = VirtualTime()
    engine = VirtualEngine(VirtualConfig(policy=PolicySpec(policy), slots=SLOTS), clock)
    return replay(programs, engine, clock, COST, predictor=LEARNED, until_s=UNTIL_S)


@pytest.mark.parametrize("router", ["round_robin", "power_of_k"])
@pytest.mark.parametrize("policy", ["edf", "calm_published"])
def test_a_fleet_of_one_replica_is_exactly_the_single_engine(
    policy: str, router: str, busy: tuple[Program, ...]
) -> None:
    single = run_single_engine(busy, policy)
    fleet = run(busy, RouterSpec(router), 1, policy).replay
    assert repr(fleet.programs) == repr(single.programs)
    assert fleet.ended_s == single.ended_s
    unmeasured = {"schedule_ms_per_step": None}
    assert replace(fleet.counters, **unmeasured) == replace(single.counters, **unmeasured)


@pytest.mark.parametrize(
    "router",
    [
        RouterSpec("least_loaded"),
        RouterSpec("slos_serve"),
        RouterSpec("power_of_k", {"k": 0}),
        RouterSpec("power_of_k", {"late": False}),
    ],
    ids=lambda spec: f"{spec.name}{dict(spec.params)}",
)
def test_the_same_arguments_give_the_same_outcomes_and_every_call_runs_once(
    router: RouterSpec, busy: tuple[Program, ...]
) -> None:
    """CallOutcome asserts that no call has too many tokens."""
    first, second = [run(busy, router, 2) for _ in range(2)]
    assert repr(first.replay.programs) == repr(second.replay.programs)
    assert first.calls == second.calls
    assert (first.demoted, first.withdrawn) == (second.demoted, second.withdrawn)
    answered = [
        call for each in first.replay.programs for call in each.each_call() if call.token_times_s
    ]
    assert len(answered) <= sum(first.calls.values())
    assert min(first.calls.values()) > 0


def test_copies_wait_until_a_scheduler_runs_one_of_them(busy: tuple[Program, ...]) -> None:
    result = run(busy, RouterSpec("power_of_k", {"k": 0}), 2)
    assert result.withdrawn == sum(result.calls.values())
    assert result.demoted == 0


def test_two_replicas_generate_more_tokens_than_one(busy: tuple[Program, ...]) -> None:
    tokens = [
        sum(
            len(call.token_times_s)
            for each in run(busy, RouterSpec("least_loaded"), count).replay.programs
            for call in each.each_call()
        )
        for count in (1, 2)
    ]
    assert tokens[1] > 1.2 * tokens[0]

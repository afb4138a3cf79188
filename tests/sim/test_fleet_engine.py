"""Several production schedulers in one virtual time, each call run by exactly one of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from serving.policies.table import PolicySpec
from serving.router.table import RouterSpec
from serving.sim.drive.driver import Replay, VirtualTime, replay
from serving.sim.drive.fleet import FleetReplay, run_fleet
from serving.sim.drive.replica import Replica
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.programs import Program
from serving.sim.programs.promises import Predictions
from serving.sim.workloads.workloads import generate
from serving.step_cost import STEP_COSTS

pytestmark = pytest.mark.usefixtures("imported_vllm")

COST = STEP_COSTS["a100-llama3-8b"]
TOLD = Predictions(lengths=LengthErrors(), futures=FutureErrors())
UNTIL_S = 8.0
SLOTS = 24  # few enough that requests queue: copies must wait, and be withdrawn in time


@pytest.fixture(scope="module")
def busy() -> tuple[Program, ...]:
    """Mixed work, twice what two of these replicas would do."""
    return generate("mixed", rate_per_s=4.0, window_s=7.0, seed=3)


def ran(
    programs: tuple[Program, ...], router: RouterSpec, num_replicas: int, policy: str = "edf"
) -> FleetReplay:
    from serving.sim.drive.virtual_engine import VirtualConfig
    from serving.sim.drive.virtual_replica import VirtualReplica

    config = VirtualConfig(policy=PolicySpec(policy), slots=SLOTS)
    replicas = []
    for number in range(num_replicas):
        clock = VirtualTime()
        engine = VirtualReplica(config, clock)
        replicas.append(Replica(f"{number:02d}", engine, clock, COST))
    return run_fleet(programs, replicas, router.build(), predictions=TOLD, until_s=UNTIL_S)


def alone(programs: tuple[Program, ...], policy: str) -> Replay:
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    clock = VirtualTime()
    engine = VirtualEngine(VirtualConfig(policy=PolicySpec(policy), slots=SLOTS), clock)
    return replay(programs, engine, clock, COST, predictions=TOLD, until_s=UNTIL_S)


@pytest.mark.parametrize("router", ["round_robin", "power_of_k"])
@pytest.mark.parametrize("policy", ["edf", "calm_published"])
def test_one_replica_is_the_single_engine_to_the_last_bit(
    policy: str, router: str, busy: tuple[Program, ...]
) -> None:
    one, fleet = alone(busy, policy), ran(busy, RouterSpec(router), 1, policy).replay
    assert repr(fleet.programs) == repr(one.programs)
    assert fleet.ended_s == one.ended_s
    unmeasured = {"schedule_ms_per_step": None}
    assert replace(fleet.counters, **unmeasured) == replace(one.counters, **unmeasured)


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
    """That no call has more tokens than it should, its outcome asserts itself."""
    one, two = [ran(busy, router, 2) for _ in range(2)]
    assert repr(one.replay.programs) == repr(two.replay.programs)
    assert (one.calls, one.demoted, one.withdrawn) == (two.calls, two.demoted, two.withdrawn)
    answered = [
        call for each in one.replay.programs for call in each.each_call() if call.token_times_s
    ]
    assert len(answered) <= sum(one.calls.values())
    assert min(one.calls.values()) > 0


def test_copies_wait_until_a_scheduler_runs_one_of_them(busy: tuple[Program, ...]) -> None:
    found = ran(busy, RouterSpec("power_of_k", {"k": 0}), 2)
    assert found.withdrawn == sum(found.calls.values())
    assert found.demoted == 0


def test_two_replicas_do_more_than_one(busy: tuple[Program, ...]) -> None:
    tokens = [
        sum(
            len(call.token_times_s)
            for each in ran(busy, RouterSpec("least_loaded"), count).replay.programs
            for call in each.each_call()
        )
        for count in (1, 2)
    ]
    assert tokens[1] > 1.2 * tokens[0]

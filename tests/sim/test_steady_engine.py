"""SteadyEngine: the same outcomes as VirtualEngine, whatever is short and whatever is planned."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from serving.policies.table import PolicySpec
from serving.sim.drive.driver import Replay, VirtualTime, replay
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.programs import Program
from serving.sim.workloads.workloads import generate
from serving.step_cost import STEP_COSTS

pytestmark = pytest.mark.usefixtures("imported_vllm")

COST = STEP_COSTS["a100-llama3-8b"]
LEARNED = Predictions(lengths=LengthErrors(), futures=FutureErrors())


@pytest.fixture(scope="module")
def busy() -> tuple[Program, ...]:
    """12 s of mixed work at more than the machine's capacity."""
    return generate("mixed", rate_per_s=3.0, window_s=12.0, seed=1)


def run(
    programs: tuple[Program, ...], policy: PolicySpec, *, steady: bool, **changes: Any
) -> Replay:
    from serving.sim.drive.steady_engine import SteadyEngine
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    clock = VirtualTime()
    config = VirtualConfig(policy=policy, **changes)
    engine = (SteadyEngine if steady else VirtualEngine)(config, clock)
    done = replay(programs, engine, clock, COST, predictor=LEARNED, until_s=20.0)
    return done._replace(counters=replace(done.counters, schedule_ms_per_step=None))


@pytest.mark.parametrize(
    "policy", ["fcfs", "edf", "slai", "slos_serve", "calm_published", "plas", "calm"]
)
def test_both_engines_give_the_same_outcomes(policy: str, busy: tuple[Program, ...]) -> None:
    spec = PolicySpec(policy)
    assert run(busy, spec, steady=True) == run(busy, spec, steady=False)


@pytest.mark.parametrize("workload", ["streamed_research", "thinking", "two_paces"])
def test_answers_in_two_parts_have_the_same_outcomes_on_both(workload: str) -> None:
    programs = generate(workload, rate_per_s=3.0, window_s=12.0, seed=1)
    steady = run(programs, PolicySpec("calm"), steady=True)
    assert steady == run(programs, PolicySpec("calm"), steady=False)


@pytest.mark.parametrize(
    "changes",
    [
        {"kv_blocks": 1200, "max_model_tokens": 16384},
        {"kv_blocks": 1200, "max_model_tokens": 16384, "prefix_caching": True},
        {"prefix_caching": True},
        {"slots": 48, "step_tokens": 48},
        {"slots": 64, "step_tokens": 128, "prefix_caching": True},
        {"drafted_tokens": 3, "accepted_tokens": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize("policy", ["fcfs", "edf"])
def test_scarce_memory_slots_or_tokens_change_neither(
    policy: str, changes: dict[str, Any], busy: tuple[Program, ...]
) -> None:
    spec = PolicySpec(policy)
    steady = run(busy, spec, steady=True, **changes)
    assert steady == run(busy, spec, steady=False, **changes)
    if "kv_blocks" in changes:
        assert steady.counters.preemptions, "memory is scarce"


def test_most_decodes_are_steady(busy: tuple[Program, ...]) -> None:
    from serving.sim.drive.steady_engine import SteadyEngine
    from serving.sim.drive.virtual_engine import VirtualConfig

    class Counting(SteadyEngine):
        num_decodes = num_steady = 0

        def plan_step(self) -> Any:
            composition = super().plan_step()
            self.num_decodes += composition.num_decodes
            self.num_steady += len(self.scheduler.steady)
            return composition

    clock = VirtualTime()
    engine = Counting(VirtualConfig(policy=PolicySpec("fcfs")), clock)
    replay(busy, engine, clock, COST, predictor=LEARNED, until_s=20.0)
    # Of the 16 decodes of a block one needs a new block.
    assert engine.num_steady > 0.9 * engine.num_decodes

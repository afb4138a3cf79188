"""Programs in closed loop on the production scheduler, in virtual time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from serving.policies.table import POLICIES, PolicySpec
from serving.sim.drive.driver import Replay, VirtualTime, replay
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.programs.promises import Predictions
from serving.sim.workloads.workloads import generate
from serving.slo import SloKind
from serving.step_cost import STEP_COSTS

pytestmark = pytest.mark.usefixtures("imported_vllm")

COST = STEP_COSTS["a100-llama3-8b"]
TOLD = Predictions(lengths=LengthErrors(), futures=FutureErrors())


def ran(
    programs: tuple[Program, ...],
    policy: str = "fcfs",
    *,
    until_s: float = 1e6,
    predictions: Predictions = TOLD,
    **changes: int,
) -> Replay:
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    clock = VirtualTime()
    engine = VirtualEngine(VirtualConfig(policy=PolicySpec(policy), **changes), clock)
    free = engine.free_blocks
    found = replay(
        programs,
        engine,
        clock,
        COST,
        predictions=predictions,
        until_s=until_s,
    )
    if not engine.has_work:
        assert engine.free_blocks == free
    return found


def research(number: int, arrival_s: float, *, tool_s: float = 0.5) -> Program:
    return Program(
        id=f"p{number}",
        application="research",
        kind=SloKind.COMPOUND,
        arrival_s=arrival_s,
        stages=(
            Stage((Call(100, 20),)),
            Stage((Call(50, 40), Call(60, 10)), tool_s=tool_s),
            Stage((Call(300, 30),)),
        ),
        deadline_s=60.0,
    )


@pytest.fixture(scope="module")
def busy() -> tuple[Program, ...]:
    """Half a minute of mixed work at more than the machine's capacity."""
    return generate("mixed", rate_per_s=3.0, window_s=30.0, seed=1)


def test_a_stage_begins_when_the_former_really_ended_and_its_tools_ran() -> None:
    programs = tuple(research(number, 0.1 * number) for number in range(6))
    for outcome in ran(programs).programs:
        assert outcome.finished
        for before, after in pairwise(outcome.calls):
            ended_s = max(call.token_times_s[-1] for call in before)
            tool_s = 0.5 if len(after) == 2 else 0.0
            for call in after:
                assert call.submitted_s == ended_s + tool_s


@pytest.mark.parametrize("policy", POLICIES)
def test_every_program_ends_and_every_token_is_delivered_once(
    policy: str, busy: tuple[Program, ...]
) -> None:
    """Whatever the policy, if nothing may be dropped: latency programs here have no limit."""
    patient = tuple(program for program in busy if program.kind is not SloKind.LATENCY)
    for program, outcome in zip(patient, ran(patient, policy).programs, strict=True):
        assert outcome.finished
        lengths = [call.output_tokens for stage in program.stages for call in stage.calls]
        assert [len(call.token_times_s) for call in outcome.each_call()] == lengths
        assert outcome.arrival_s == program.arrival_s


@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_arguments_give_the_same_outcomes(policy: str, busy: tuple[Program, ...]) -> None:
    one, two = [ran(busy, policy, until_s=15.0) for _ in range(2)]
    assert one.programs == two.programs
    assert one.counters.steps == two.counters.steps


def test_what_is_not_done_by_the_end_is_reported_as_it_stands(busy: tuple[Program, ...]) -> None:
    found = ran(busy, until_s=20.0)
    assert len(found.programs) == len(busy)
    late = [each for each in found.programs if each.arrival_s > 20.5]
    assert late
    assert all(not each.calls for each in late)
    times = [t for each in found.programs for call in each.each_call() for t in call.token_times_s]
    assert max(times) <= found.ended_s
    assert any(not each.finished for each in found.programs if each.arrival_s < 20.0)


def test_memory_pressure_recomputes_and_loses_nothing() -> None:
    programs = tuple(research(number, 0.0) for number in range(12))
    found = ran(programs, kv_blocks=60, max_model_tokens=800)
    assert found.counters.preemptions > 0
    assert found.counters.recomputed_tokens > 0
    assert all(each.finished for each in found.programs)


def test_what_it_is_told_changes_no_order_of_fcfs(busy: tuple[Program, ...]) -> None:
    """fcfs looks at nothing that is told, so that an oracle and no foresight are the same."""
    blind, told = [ran(busy, predictions=each, until_s=20.0) for each in (Predictions(), TOLD)]
    assert blind.programs == told.programs

"""Programs in closed loop on the production scheduler, in virtual time."""

from __future__ import annotations

from itertools import pairwise

import pytest

from serving.policies.table import PolicySpec
from serving.sim.drive.driver import Replay, VirtualTime, replay
from serving.sim.programs.call_slos import Predictions
from serving.sim.programs.predictions import FutureErrors, LengthErrors
from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.workloads.workloads import generate
from serving.slo import SloKind
from serving.step_cost import STEP_COSTS
from tests.strategies import PLAN_KINDS

pytestmark = pytest.mark.usefixtures("imported_vllm")

COST = STEP_COSTS["a100-llama3-8b"]
LEARNED = Predictions(lengths=LengthErrors(), futures=FutureErrors())


def run(
    programs: tuple[Program, ...],
    policy: str = "fcfs",
    *,
    until_s: float = 1e6,
    predictions: Predictions = LEARNED,
    **changes: int,
) -> Replay:
    from serving.sim.drive.virtual_engine import VirtualConfig, VirtualEngine

    clock = VirtualTime()
    engine = VirtualEngine(VirtualConfig(policy=PolicySpec(policy), **changes), clock)
    free_blocks = engine.free_blocks
    replayed = replay(
        programs,
        engine,
        clock,
        COST,
        predictor=predictions,
        until_s=until_s,
    )
    if not engine.has_work:
        assert engine.free_blocks == free_blocks
    return replayed


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
    """15 s of mixed work at more than the machine's capacity."""
    return generate("mixed", rate_per_s=3.0, window_s=15.0, seed=1)


def test_a_stage_starts_when_the_previous_one_has_ended_and_its_tools_have_run() -> None:
    programs = tuple(research(number, 0.1 * number) for number in range(6))
    for outcome in run(programs).programs:
        assert outcome.finished
        for before, after in pairwise(outcome.calls):
            ended_s = max(call.token_times_s[-1] for call in before)
            tool_s = 0.5 if len(after) == 2 else 0.0
            for call in after:
                assert call.submitted_s == ended_s + tool_s


@pytest.mark.parametrize("policy", PLAN_KINDS)
def test_every_program_ends_and_every_token_is_delivered_once(
    policy: str, busy: tuple[Program, ...]
) -> None:
    """With deadline and compound programs only: policies may drop latency programs."""
    no_streams = tuple(program for program in busy if program.kind is not SloKind.LATENCY)
    for program, outcome in zip(no_streams, run(no_streams, policy).programs, strict=True):
        assert outcome.finished
        lengths = [call.output_tokens for stage in program.stages for call in stage.calls]
        assert [len(call.token_times_s) for call in outcome.each_call()] == lengths
        assert outcome.arrival_s == program.arrival_s


@pytest.mark.parametrize("policy", PLAN_KINDS)
def test_the_same_arguments_give_the_same_outcomes(policy: str, busy: tuple[Program, ...]) -> None:
    first, second = [run(busy, policy, until_s=8.0) for _ in range(2)]
    assert first.programs == second.programs
    assert first.counters.steps == second.counters.steps


def test_programs_that_have_not_ended_by_the_end_are_reported_with_their_progress(
    busy: tuple[Program, ...],
) -> None:
    replayed = run(busy, until_s=10.0)
    assert len(replayed.programs) == len(busy)
    late = [each for each in replayed.programs if each.arrival_s > 10.5]
    assert late
    assert all(not each.calls for each in late)
    times = [
        t for each in replayed.programs for call in each.each_call() for t in call.token_times_s
    ]
    assert max(times) <= replayed.ended_s
    assert any(not each.finished for each in replayed.programs if each.arrival_s < 10.0)


def test_under_memory_pressure_requests_are_preempted_and_all_finish() -> None:
    programs = tuple(research(number, 0.0) for number in range(12))
    replayed = run(programs, kv_blocks=60, max_model_tokens=800)
    assert replayed.counters.preemptions > 0
    assert replayed.counters.recomputed_tokens > 0
    assert all(each.finished for each in replayed.programs)


def test_predictions_do_not_change_fcfs(busy: tuple[Program, ...]) -> None:
    without, learned = [
        run(busy, predictions=each, until_s=10.0) for each in (Predictions(), LEARNED)
    ]
    assert without.programs == learned.programs

"""The goodput at one pace: known optima; below the bound on the mixed workload."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial

import pytest

from benchmarks.one_pace import best_of_each, earned, work_of
from serving.sim.bound.bound import upper_bound
from serving.sim.bound.demand import request_demand
from serving.sim.bound.least_work import LeastWork
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.programs.programs import Call, Program, Stage
from serving.sim.workloads.load_generator import Source
from serving.slo import SloKind
from serving.step_cost import MACHINES, StepCost

A100 = MACHINES["a100-llama3-8b"]
LEAST_WORK = LeastWork(cost=A100.step_cost, step_tokens=2048, slots=256)
PLAIN = LeastWork(
    cost=StepCost(
        name="made up", source="", uncertainty="", large_base_s=0.01, large_token_s=0.001
    ),
    step_tokens=2048,
    slots=256,
)


def program(*stages: Stage, deadline_s: float = 10.0) -> Program:
    kind = SloKind.DEADLINE if len(stages) == 1 else SloKind.COMPOUND
    return Program(
        id="p", application="", kind=kind, arrival_s=0.0, stages=stages, deadline_s=deadline_s
    )


def num_met(programs: list[Program], least_work: LeastWork = PLAIN, *, step_s: float) -> float:
    """Number of programs that meet their SLO in ten seconds."""
    requests = partial(request_demand, least_work=least_work, observed_until_s=math.inf, bin_s=10.0)
    return earned(work_of(programs, least_work, requests), least_work, length_s=10.0, step_s=step_s)


def test_steps_may_be_as_long_as_the_deadline_divided_by_their_number() -> None:
    hundred_steps = program(Stage((Call(1, 100),)))
    assert num_met([hundred_steps], step_s=0.0999) == pytest.approx(1.0)
    assert num_met([hundred_steps], step_s=0.1001) == 0.0


def test_the_time_of_tools_is_not_available_for_steps() -> None:
    stages = (Stage((Call(1, 50),)), Stage((Call(1, 50),), tool_s=4.0))
    assert num_met([program(*stages)], step_s=0.0599) == pytest.approx(1.0)
    assert num_met([program(*stages)], step_s=0.0601) == 0.0


def test_the_base_cost_of_steps_is_not_available_for_tokens() -> None:
    # 100 steps of 100 ms leave 90 ms each: 9,000 tokens of 1 ms, ten programs of 899.
    many = [replace(program(Stage((Call(801, 99),))), id=str(number)) for number in range(20)]
    assert num_met(many, step_s=0.1) == pytest.approx(9000 / 899, rel=2e-3)


def test_steps_shorter_than_their_base_cost_earn_nothing() -> None:
    assert num_met([program(Stage((Call(1, 2),)))], step_s=0.005) == 0.0


def stream(prompt_tokens: int, output_tokens: int) -> Program:
    """A stream with a TTFT of 1 s and a TBT of 0.1 s."""
    return Program(
        id="s",
        application="",
        kind=SloKind.LATENCY,
        arrival_s=0.0,
        stages=(Stage((Call(prompt_tokens, output_tokens),)),),
        ttft_s=1.0,
        tbt_s=0.1,
    )


def test_a_stream_may_use_the_time_until_its_ttft_for_later_tokens() -> None:
    # 20 steps until 1 s + 19 * 0.1 s.
    assert num_met([stream(10, 20)], step_s=0.1449) == pytest.approx(1.0)
    assert num_met([stream(10, 20)], step_s=0.1451) == 0.0


def test_a_prefill_of_many_steps_must_complete_by_the_ttft() -> None:
    # 20 steps of 10 tokens until 1 s; the decodes alone would allow steps of 0.1 s.
    small = replace(PLAIN, step_tokens=10)
    assert num_met([stream(200, 50)], small, step_s=0.0499) == pytest.approx(1.0)
    assert num_met([stream(200, 50)], small, step_s=0.0501) == 0.0


def test_programs_outside_the_window_do_not_count() -> None:
    late = replace(program(Stage((Call(10, 10),))), arrival_s=10.0)
    tokens, requests = best_of_each([late], LEAST_WORK, window_s=(0.0, 10.0))
    assert (tokens.goodput, requests.goodput) == (0.0, 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("rate_per_s", [1.0, 4.0])
def test_on_the_mixed_workload_the_best_pace_is_below_the_bound(rate_per_s: float) -> None:
    config = ExperimentConfig(source=Source.generator("mixed"), window_s=120.0)
    load = config.generate_load(rate_per_s=rate_per_s, seed=0)
    bound = upper_bound(load.programs, A100, window_s=load.window_s)
    tokens, requests = best_of_each(load.programs, LEAST_WORK, window_s=load.window_s)
    assert 0.5 * bound.token_goodput < tokens.goodput <= bound.token_goodput
    assert 0.5 * bound.request_goodput < requests.goodput <= bound.request_goodput

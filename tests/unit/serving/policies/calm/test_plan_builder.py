"""Requests that run beside the admitted ones, in the time that these leave."""

from __future__ import annotations

import numpy as np
import pytest

from serving.policies.calm.plan_builder import build_plan
from serving.policies.calm.program_demand import calls_of
from serving.policies.calm.step_duration import step_duration_of
from serving.policies.urgency import urgency_of
from serving.slo import Slo
from serving.view import StepModel
from tests.unit.serving.serving_examples import deadline, request, step

MODEL = StepModel(base_s=0.02, token_s=1e-4)


def beside_a_prompt(
    prompt_tokens: int, slo: Slo, *, spare: float = 0.0, step_s: float = 1.0
) -> bool:
    """Whether a request with this SLO runs beside an admitted prompt of this many tokens."""
    admitted = request("admitted", slo=deadline(50.0), prompt_tokens=prompt_tokens)
    view = step(admitted, request("other", slo=slo), model=MODEL, slots=64, token_s=0.02)
    plan = build_plan(
        view,
        calls_of(view.requests, view.model),
        np.array([0, 1]),
        admitted=np.array([True, False]),
        urgency=urgency_of(view),
        spare=np.full(2, spare),
        utilisation=0.8,
        step=step_duration_of(view._replace(step_tokens=2000), step_s),
        size=64,
        frame_steps=10,
    )
    assert "admitted" in plan.run
    return "other" in plan.run


@pytest.mark.parametrize(("prompt_tokens", "runs"), [(5000, True), (9000, False)])
def test_best_effort_work_runs_in_the_idle_part_of_the_next_second(
    prompt_tokens: int, runs: bool
) -> None:
    """0.8 s are allocated, less fixed cost; the admitted prompts take 0.5 and 0.9 s."""
    assert beside_a_prompt(prompt_tokens, Slo()) == runs


def test_shorter_steps_leave_less_of_a_second() -> None:
    """Four fifths of steps of 25 ms are fixed cost."""
    assert not beside_a_prompt(2000, Slo(), step_s=0.025)


def test_a_request_that_will_miss_its_slo_has_only_the_spare_time_of_admission() -> None:
    """Its KV cache would take memory from later arrivals."""
    assert not beside_a_prompt(10, deadline(90.0))
    assert beside_a_prompt(10, deadline(90.0), spare=0.1)

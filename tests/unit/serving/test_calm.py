"""What calm's plans say beside the laws of every policy."""

from __future__ import annotations

import pytest

from serving.policies.calm import CROWD, calm
from serving.view import StepModel
from tests.unit.serving.serving_examples import deadline, request, running, step

MODEL = StepModel(base_s=0.02, token_s=1e-4, sequence_s=0.0, context_s=0.0)


def test_a_late_decode_gives_way_to_a_prompt_that_is_not_late() -> None:
    """Although decodes come before prompts: each is a single token."""
    late = running("late", slo=deadline(1.0), computed_tokens=12, output_tokens=3)
    in_time = running("in time", slo=deadline(100.0), computed_tokens=12, output_tokens=3)
    view = step(late, in_time, request("prompt"), now_s=50.0, model=MODEL, slots=3)
    plan = calm(view)
    assert plan.order == ("in time", "prompt", "late")
    assert plan.run == {"in time", "prompt", "late"}


@pytest.mark.parametrize(
    ("num_requests", "least_steps", "steps"), [(1, 4, 10), (5 * CROWD, 5, 10), (20 * CROWD, 20, 20)]
)
def test_a_plan_for_a_crowd_holds_longer(num_requests: int, least_steps: int, steps: int) -> None:
    view = step(*(request(f"{number}") for number in range(num_requests)), model=MODEL)
    plan = calm(view, least_steps=4, frame_steps=10)
    assert (plan.least_steps, plan.steps) == (least_steps, steps)

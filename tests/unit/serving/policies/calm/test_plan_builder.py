"""Who is computed beside the admitted, in what these leave over."""

from __future__ import annotations

import numpy as np
import pytest

from serving.policies.calm.plan_builder import planned
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
    """Whether such a call is computed while a prompt of so many tokens is admitted."""
    admitted = request("admitted", slo=deadline(50.0), prompt_tokens=prompt_tokens)
    view = step(admitted, request("other", slo=slo), model=MODEL, slots=64, token_s=0.02)
    plan = planned(
        view,
        calls_of(view.requests, view.model),
        np.array([0, 1]),
        admitted=np.array([True, False]),
        urgency=urgency_of(view),
        spare=np.full(2, spare),
        given=0.8,
        step=step_duration_of(view._replace(step_tokens=2000), step_s),
        size=64,
        frame_steps=10,
    )
    assert "admitted" in plan.run
    return "other" in plan.run


@pytest.mark.parametrize(("prompt_tokens", "is_computed"), [(5000, True), (9000, False)])
def test_whatever_was_foretold_untagged_work_has_what_is_left_of_the_next_second(
    prompt_tokens: int, is_computed: bool
) -> None:
    """Of 0.8 s, of which steps cost some, prompts of 0.5 and of 0.9 s."""
    assert beside_a_prompt(prompt_tokens, Slo()) == is_computed


def test_the_shorter_the_steps_the_less_is_left_of_a_second() -> None:
    """At 25 ms a step four fifths of it are what steps cost anyway."""
    assert not beside_a_prompt(2000, Slo(), step_s=0.025)


def test_who_has_a_promise_that_is_not_to_be_kept_has_what_admission_left_alone() -> None:
    """Its cache would stand in the way of those who come."""
    assert not beside_a_prompt(10, deadline(90.0))
    assert beside_a_prompt(10, deadline(90.0), spare=0.1)

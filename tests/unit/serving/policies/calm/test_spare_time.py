"""Requests that are not admitted and run in the time that the admitted ones leave."""

from __future__ import annotations

import numpy as np
import pytest

from serving.policies.calm.admission import HORIZONS_S, ExpectedDemand
from serving.policies.calm.program_demand import calls_of, present_programs
from serving.policies.calm.spare_time import in_spare_time
from serving.policies.calm.step_duration import step_duration_of
from serving.requests import RequestView
from serving.slo import Slo
from serving.view import StepModel
from tests.unit.serving.serving_examples import deadline, latency, request, running, step

MODEL = StepModel(base_s=0.02, token_s=1e-4, sequence_s=0.0, context_s=0.0)


def those_beside(
    *admitted: RequestView, others: list[Slo], step_s: float = 0.2, soon_s: float = 0.0
) -> list[bool]:
    """Which requests of 1,000 prompt tokens run beside the admitted ones.

    Args:
        step_s: duration of steps; 0.2 s leave 0.9 of each second.
        soon_s: what better arrivals take in the next second.
    """
    rows = [request(f"{n}", slo=slo, prompt_tokens=1001) for n, slo in enumerate(others)]
    view = step(*admitted, *rows, model=MODEL, slots=64, step_tokens=10_000)
    calls = calls_of(view.requests, view.model)
    count, is_admitted = len(view.requests), np.arange(len(view.requests)) < len(admitted)
    runs = in_spare_time(
        view,
        calls,
        present_programs(view, calls),
        np.arange(count),
        admitted=is_admitted,
        density=np.ones(count),
        expected=ExpectedDemand(
            np.array([2.0]), np.zeros((2, len(HORIZONS_S))), np.array([0.0, soon_s])
        ),
        utilisation=0.8,
        step=step_duration_of(view, step_s),
    )
    flags: list[bool] = runs.tolist()
    assert not any(flags[: len(admitted)])
    return flags[len(admitted) :]


def prompt(prompt_tokens: int, deadline_s: float = 50.0) -> RequestView:
    return request("admitted", slo=deadline(deadline_s), prompt_tokens=prompt_tokens + 1)


@pytest.mark.parametrize(("prompt_tokens", "runs"), [(5000, True), (8000, False)])
@pytest.mark.parametrize("slo", [Slo(), deadline(90.0)], ids=["best effort", "will be late"])
def test_what_is_not_admitted_runs_in_the_idle_part_of_the_next_second(
    prompt_tokens: int, slo: Slo, runs: bool
) -> None:
    """0.8 * 0.9 s are allocated; the admitted prompts take 0.5 and 0.8 s of it."""
    assert those_beside(prompt(prompt_tokens), others=[slo]) == [runs]


def test_it_runs_until_the_second_is_full_the_best_first() -> None:
    """0.22 s are left; each prompt adds 0.1 s and its decodes."""
    assert those_beside(prompt(5000), others=[deadline(9.0)] * 4) == [True, True, True, False]


def test_all_that_is_not_admitted_runs_beside_nothing() -> None:
    assert those_beside(others=[deadline(9.0)] * 50) == [True] * 50


def test_shorter_steps_leave_less_of_a_second() -> None:
    """Four fifths of steps of 25 ms are fixed cost."""
    assert those_beside(prompt(2000), others=[Slo()], step_s=0.025) == [False]


@pytest.mark.parametrize(("slo", "runs"), [(Slo(), True), (deadline(90.0), False)])
def test_time_that_better_arrivals_will_take_is_left_to_them_but_not_by_best_effort(
    slo: Slo, runs: bool
) -> None:
    """Each arrival displaces best-effort work at once."""
    assert those_beside(prompt(2000), others=[slo], soon_s=0.6) == [runs]


@pytest.mark.parametrize(
    "slo", [deadline(2.5), latency(1.0, 0.025)], ids=["a deadline", "a stream"]
)
def test_an_admitted_program_that_needs_short_steps_leaves_less_of_a_second(slo: Slo) -> None:
    """100 tokens in 2.5 s, or a token every 25 ms, bear steps below 25 ms."""
    tight = running("tight", slo=slo, prompt_tokens=10, max_tokens=100)
    loose = running("tight", slo=deadline(500.0), prompt_tokens=10, max_tokens=100)
    assert those_beside(loose, others=[Slo(), deadline(90.0)]) == [True, True]
    assert those_beside(loose, prompt(2000), others=[Slo()]) == [True]
    assert those_beside(tight, prompt(2000), others=[Slo()]) == [False]

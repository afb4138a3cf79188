"""Largest service density first: gain / remaining seconds, and a tenth for best effort."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policies.baselines.lsdf import lsdf, remaining_s, service_gain
from serving.slo import Slo
from serving.view import StepView
from tests.strategies import law
from tests.unit.serving.serving_examples import (
    compound,
    deadline,
    latency,
    request,
    running,
    step,
)

EASY = deadline(1000.0)


def gains(view: StepView, exponent: float = 1.0) -> list[float]:
    tokens = view.requests.remaining_tokens()
    gain: list[float] = service_gain(view, tokens, remaining_s(view, tokens), exponent).tolist()
    return gain


def test_the_request_with_the_largest_density_comes_first() -> None:
    """(100 + 2 * 10) / 10 s, (10 + 2 * 4) / 4 s and (10 + 2 * 10) / 10 s."""
    view = step(
        request("plain", slo=EASY),
        request("short", slo=EASY, max_tokens=4),
        request("long prompt", slo=EASY, prompt_tokens=100),
    )
    assert gains(view) == pytest.approx([30.0, 18.0, 120.0])
    assert lsdf(view).order == ("long prompt", "short", "plain")


def test_lateness_lowers_the_gain() -> None:
    """Ten tokens take 10 s, and the second deadline is at 5 s. In equation 4 the exponent has the
    opposite sign, with which late work would gain."""
    view = step(request("in time", slo=deadline(10.0)), request("late", slo=deadline(5.0)))
    assert gains(view) == pytest.approx([30.0, 15.0])
    assert gains(view, exponent=2.0) == pytest.approx([30.0, 7.5])
    assert gains(view, exponent=0.0) == pytest.approx([30.0, 30.0])
    assert lsdf(view).order == ("in time", "late")


def test_time_already_spent_counts_towards_the_deadline() -> None:
    view = step(request("old", slo=deadline(20.0)), now_s=15.0)
    assert gains(view) == pytest.approx([30.0 * 20.0 / 25.0])


def test_the_gain_of_a_stream_decays_by_its_first_token_and_its_step_time() -> None:
    """Prefill takes 5 s and a step 1 s: the first token takes 6 s, and the TTFT is 3 s."""
    stream = request("stream", slo=latency(3.0, 0.5), max_tokens=10)
    view = step(stream, prefill_token_s=0.5)
    assert gains(view) == pytest.approx([10 * (3 / 6) + 2 * 10 * (0.5 / 1.0)])
    begun = running("stream", slo=latency(3.0, 2.0), output_tokens=1, max_tokens=10)
    assert gains(step(begun, now_s=50.0)) == pytest.approx([10 + 2 * 10])


def test_all_calls_of_a_stage_have_the_remaining_time_of_the_slowest() -> None:
    stage = compound(1000.0, program="run", stage=1)
    short = request("short", slo=stage, max_tokens=2)
    long = request("long", slo=stage, max_tokens=50)
    other = request("other", slo=compound(1000.0, program="else", stage=1), max_tokens=3)
    tokens = np.array([2.0, 50.0, 3.0])
    assert remaining_s(step(short, long, other), tokens).tolist() == [50.0, 50.0, 3.0]
    assert lsdf(step(short, long, other)).order == ("other", "long", "short")


def test_a_weight_multiplies_the_gain() -> None:
    view = step(
        request("plain", slo=EASY),
        request("weighted", slo=deadline(1000.0, weight=2.0), arrival_s=1.0),
    )
    assert lsdf(view._replace(now_s=1.0)).order == ("weighted", "plain")


@pytest.mark.parametrize(("weight", "winner"), [(1.04, "incumbent"), (1.06, "challenger")])
def test_a_running_request_is_preempted_only_if_the_gain_exceeds_the_recomputation(
    weight: float, winner: str
) -> None:
    """Recomputing its 10 tokens takes 1 s, a twentieth of the quantum of 20 steps of 1 s."""
    incumbent = running("incumbent", slo=EASY)
    challenger = request("challenger", slo=deadline(1000.0, weight=weight), computed_tokens=10)
    view = step(incumbent, challenger, prefill_token_s=0.1, slots=1)
    assert lsdf(view).run == {winner}


def test_a_plan_is_valid_for_a_quantum() -> None:
    assert lsdf(step(request("a"))).steps == 20
    assert lsdf(step(request("a")), quantum_steps=7).steps == 7


def crowd(num_with_slo: int, num_best_effort: int) -> StepView:
    with_slo = [request(f"slo {i:02d}", slo=EASY) for i in range(num_with_slo)]
    best_effort = [
        request(f"any {i:02d}", slo=Slo(weight=0.01 + i), arrival_s=float(i))
        for i in range(num_best_effort)
    ]
    return step(*with_slo, *best_effort, now_s=float(num_best_effort))


@law
@given(st.integers(0, 40), st.integers(0, 40), st.integers(1, 40))
def test_a_tenth_of_the_batch_is_for_best_effort_and_no_slot_stays_empty(
    num_with_slo: int, num_best_effort: int, batch: int
) -> None:
    plan = lsdf(crowd(num_with_slo, num_best_effort), batch=batch)
    oldest = [f"any {i:02d}" for i in range(num_best_effort)]
    chosen = [request_id for request_id in oldest if request_id in plan.run]
    assert chosen == oldest[: len(chosen)], "first come, first served"
    assert len(plan.run) == min(batch, num_with_slo + num_best_effort)
    reserve = min(batch // 10, num_best_effort)
    assert len(chosen) == max(reserve, min(batch - num_with_slo, num_best_effort))


def test_expired_work_is_last_regardless_of_density() -> None:
    late = request("late", slo=deadline(1.0), prompt_tokens=8000, max_tokens=1)
    modest = request("modest", slo=deadline(1000.0, weight=0.01))
    best_effort = request("best effort", slo=Slo(weight=0.01))
    view = step(late, modest, best_effort, now_s=100.0)
    assert lsdf(view).order == ("modest", "best effort", "late")

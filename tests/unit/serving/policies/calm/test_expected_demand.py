"""The demand that calm expects of programs still to arrive, computed from the recent arrivals."""

from __future__ import annotations

import numpy as np
import pytest

from serving.policies.calm.admission import HORIZONS_S, ExpectedDemand, expected_demand
from serving.policies.calm.program_demand import arrived_programs
from serving.policies.calm.step_duration import StepDuration, step_duration_of
from serving.requests import Requests, RequestView
from serving.slo import Slo
from serving.view import StepModel
from tests.unit.serving.serving_examples import deadline, latency, request, step

MODEL = StepModel(base_s=0.01, token_s=1e-4)
STEP_S = 0.05
USEFUL_SHARE = 0.8  # of steps of 50 ms with a fixed cost of 10


def expected_of(
    *arrivals: RequestView, count: float = 1.0, arrivals_s: float = 60.0
) -> ExpectedDemand:
    view = step(
        model=MODEL,
        step_tokens=2000,
        arrivals=Requests.of(arrivals),
        arrivals_s=arrivals_s,
        arrival_counts=np.full(len(arrivals), count),
    )
    programs = arrived_programs(view)
    return expected_demand(view, programs, programs.value(view.arrivals, 100.0, 0.5), duration())


def duration() -> StepDuration:
    chosen = step_duration_of(step(model=MODEL, step_tokens=2000), STEP_S)
    assert chosen.useful_share == pytest.approx(USEFUL_SHARE)
    return chosen


def calls(num: int, slo: Slo, *, prompt_tokens: int = 1000) -> list[RequestView]:
    """Calls that decode 1,000 tokens: 50 s in steps of 50 ms, and 0.1 s of machine time."""
    return [
        request(f"{n}", slo=slo, prompt_tokens=prompt_tokens, max_tokens=1000) for n in range(num)
    ]


@pytest.mark.parametrize("slo", [deadline(600.0), latency(1.0, 0.05)])
def test_arrivals_of_a_longer_window_count_by_their_weight(slo: Slo) -> None:
    one, eight = expected_of(*calls(1, slo)), expected_of(*calls(8, slo), count=1 / 8)
    assert eight.by_horizon[-1] == pytest.approx(one.by_horizon[-1])
    assert eight.soon_s[-1] == pytest.approx(one.soon_s[-1])


def test_a_program_demands_time_by_the_horizons_after_the_middle_of_its_latest_run() -> None:
    """Due after 20 s, and 100 tokens take 5 s: in the mean it runs 17.5 s after its arrival."""
    arrival = request("a", slo=deadline(20.0), prompt_tokens=1, max_tokens=100)
    [_, by_horizon] = expected_of(arrival, arrivals_s=10.0).by_horizon
    demand_s = 101 * MODEL.token_s / USEFUL_SHARE
    middle_s = 20.0 - (100 * STEP_S) / 2
    expected = np.maximum(HORIZONS_S - middle_s, 0.0) * demand_s / 10.0
    assert by_horizon == pytest.approx(expected, rel=0.02, abs=1e-6)


def test_the_next_second_has_the_prompts_and_the_share_of_decodes_that_fit_into_it() -> None:
    """Of 50 s of decodes a hundredth is done, on the mean, in the second of the arrival."""
    expected = expected_of(*calls(1, deadline(600.0)), arrivals_s=10.0)
    decode_s = 1000 * MODEL.token_s
    assert expected.soon_s[-1] * 10.0 == pytest.approx(0.1 + decode_s * 0.5 / 50, rel=0.02)


def test_more_arrivals_in_a_second_demand_more() -> None:
    slow, fast = (expected_of(*calls(1, deadline(600.0)), arrivals_s=s) for s in (60.0, 6.0))
    assert fast.by_horizon[-1] == pytest.approx(10 * slow.by_horizon[-1])
    assert fast.soon_s[-1] == pytest.approx(10 * slow.soon_s[-1])


def test_only_better_arrivals_count() -> None:
    cheap, dear = (
        request(f"{tokens}", slo=deadline(60.0), prompt_tokens=tokens, max_tokens=10)
        for tokens in (10, 5000)
    )
    expected = expected_of(cheap, dear)
    best, worst = expected.density
    assert best > worst
    assert expected.soon_above(np.array([best, worst, 0.0])).tolist() == expected.soon_s.tolist()


def test_without_demand_nothing_is_expected_of_any_density() -> None:
    nothing = expected_of(*calls(3, deadline(60.0))).without_demand()
    assert not nothing.above(np.array([0.0])).any()
    assert not nothing.soon_above(np.array([0.0])).any()

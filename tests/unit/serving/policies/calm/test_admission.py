"""Admission: greedy by density, priced by expected demand, in blocks that only save time."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policies.calm.admission import (
    BLOCK_SIZE,
    HORIZONS_S,
    DemandCurves,
    ExpectedDemand,
    admit,
    demand_curves_of,
)
from serving.policies.calm.program_demand import calls_of, present_programs
from serving.policies.calm.step_duration import StepDuration
from serving.policies.urgency import next_token_due_s
from serving.requests import Flags, Floats, RequestState
from serving.slo import FutureWork
from serving.view import StepModel, StepView
from tests.strategies import law
from tests.unit.serving.serving_examples import (
    compound,
    deadline,
    latency,
    request,
    running,
    step,
)

NOTHING_EXPECTED = ExpectedDemand(np.zeros(0), np.zeros((1, len(HORIZONS_S))), np.zeros(1))
MODEL = StepModel(base_s=0.5, token_s=0.25, sequence_s=0.0, context_s=0.0)
STEP = StepDuration(2.0, True, 2.0, 0.75)


def due_at_once(demand_s: Floats, due_s: Floats) -> DemandCurves:
    """Programs with their whole demand due at one time."""
    return DemandCurves(due_s, demand_s, np.zeros(len(demand_s)), np.ones(len(demand_s)))


def expecting(density: Floats, by_horizon: Floats) -> ExpectedDemand:
    """Expected demand of these densities, with these machine seconds by each horizon."""
    return ExpectedDemand(density, by_horizon, np.zeros(len(density) + 1))


def admitted_one_by_one(
    curves: DemandCurves, density: Floats, expected: ExpectedDemand, utilisation: float
) -> list[int]:
    """Test each program by itself, the best first, until a whole block is refused."""
    order = sorted(np.flatnonzero(density > 0).tolist(), key=lambda index: -density[index])
    taken, admitted = np.zeros(len(HORIZONS_S)), []
    for begin in range(0, len(order), BLOCK_SIZE):
        before = len(admitted)
        for index in order[begin : begin + BLOCK_SIZE]:
            [wanted] = curves.by_horizon(np.array([index]))
            [reserved] = expected.above(density[[index]])
            fits = taken + wanted <= utilisation * HORIZONS_S - reserved
            if (fits | (wanted == 0)).all():
                taken = taken + wanted
                admitted.append(index)
        if len(admitted) == before:
            break
    return sorted(admitted)


@law
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 4 * BLOCK_SIZE),
    largest_s=st.sampled_from([1, 8, 64, 1024]),
    num_expected=st.integers(0, 3),
)
def test_blocks_admit_the_same_programs_as_a_test_of_each_one(
    seed: int, count: int, largest_s: int, num_expected: int
) -> None:
    """All times are in eighths of a second, so that sums are exact."""
    random = np.random.default_rng(seed)
    demand_s = random.integers(1, 8 * largest_s, count) / 8
    curves = due_at_once(demand_s, random.uniform(-5.0, 1500.0, count))
    density = random.integers(0, 20, count).astype(np.float64)
    expected_density = np.sort(random.integers(1, 20, num_expected))[::-1].astype(np.float64)
    by = np.cumsum(random.integers(0, 40, (num_expected + 1, len(HORIZONS_S))), axis=0) / 8.0
    expected = expecting(expected_density, by)
    chosen = np.flatnonzero(admit(curves, density, expected, utilisation=0.5)[0])
    assert chosen.tolist() == admitted_one_by_one(curves, density, expected, 0.5)


def admitted(curves: DemandCurves, *density: float, utilisation: float = 1.0) -> list[bool]:
    chosen, _ = admit(curves, np.array(density), NOTHING_EXPECTED, utilisation=utilisation)
    flags: list[bool] = chosen.tolist()
    return flags


def test_a_program_that_does_not_fit_leaves_its_time_to_one_of_lower_density() -> None:
    curves = due_at_once(np.array([6.0, 9.0, 3.0]), np.array([10.0, 10.0, 10.0]))
    assert admitted(curves, 3.0, 2.0, 1.0) == [True, False, True]


def test_a_later_demand_does_not_need_the_time_that_is_taken_before() -> None:
    curves = due_at_once(np.array([6.0, 6.0, 6.0]), np.array([10.0, 10.0, 100.0]))
    assert admitted(curves, 3.0, 2.0, 1.0) == [True, False, True]


def test_a_program_without_value_is_not_admitted_even_if_the_machine_is_idle() -> None:
    curves = due_at_once(np.array([1.0]), np.array([100.0]))
    assert admitted(curves, 0.0) == [False]


def test_time_is_reserved_for_better_work_that_is_still_to_arrive() -> None:
    curves = due_at_once(np.array([4.0, 4.0]), np.array([10.0, 10.0]))
    by = np.zeros((2, len(HORIZONS_S)))
    by[1, HORIZONS_S > 9.0] = 7.0
    better = expecting(np.array([2.0]), by)
    chosen, _ = admit(curves, np.array([5.0, 1.0]), better, utilisation=1.0)
    assert chosen.tolist() == [True, False]


def crowd(*, streams: Flags) -> StepView:
    slos = [latency(3.0, 0.5) if stream else deadline(30.0) for stream in streams]
    requests = (
        request(f"{number:03}", slo=slo, arrival_s=float(number)) for number, slo in enumerate(slos)
    )
    return step(*requests, now_s=5.0, token_s=0.1, model=MODEL)


def curves_of(view: StepView) -> DemandCurves:
    """The demand curves with steps of 2 s, of which three quarters are useful."""
    calls = calls_of(view.requests, view.model)
    programs = present_programs(view, calls)
    last_s = programs.ends_s - programs.isolated_latency_s(2.0)
    due_s = np.where(programs.is_stream, next_token_due_s(view)[programs.first], last_s)
    demand_s = STEP.with_fixed_cost(programs.demand_s(view.model))
    return demand_curves_of(view, calls, programs, demand_s, due_s, STEP)


def test_a_stream_demands_its_prefill_first_and_then_its_tokens_when_they_are_due() -> None:
    """The first token is due in 3 s, so its step of 2 s begins in 1 s at the latest.

    9 prompt and 10 output tokens remain, 0.25 s each.
    """
    curves = curves_of(crowd(streams=np.array([False] * 5 + [True])))
    [wanted] = curves.by_horizon(np.array([5]))
    shares = wanted / (curves.first_s + curves.rest_s)[5]
    share_by = dict(zip(HORIZONS_S.tolist(), shares.tolist(), strict=True))
    before = [share for horizon_s, share in share_by.items() if horizon_s < 1.0]
    assert before == [0.0] * len(before)
    at_s = min(horizon_s for horizon_s in share_by if horizon_s >= 1.0)
    due_tokens = (at_s - 1.0) / 0.5 + 1.0
    assert share_by[at_s] == pytest.approx((9 * 0.25 + due_tokens * 0.25) / (19 * 0.25))
    assert share_by[HORIZONS_S[-1]] == pytest.approx(1.0)
    assert (np.diff(wanted) >= 0).all()


def test_a_deadline_request_demands_time_evenly_once_it_can_no_longer_pause() -> None:
    """25 s are left; its 9 prompt tokens and 10 steps take 22.25 s."""
    curves = curves_of(crowd(streams=np.array([False])))
    [wanted] = curves.by_horizon(np.array([0]))
    demand_s = 19 * 0.25 / 0.75
    shares = np.clip((HORIZONS_S - 2.75) / 22.25, 0.0, 1.0)
    assert wanted == pytest.approx(demand_s * shares)


def test_the_curve_of_a_program_does_not_depend_on_the_others() -> None:
    curves = curves_of(crowd(streams=np.arange(40) % 3 == 0))
    indices = np.random.default_rng(0).permutation(40)
    alone = [curves.by_horizon(np.array([index]))[0].tolist() for index in indices]
    assert curves.by_horizon(indices).tolist() == alone


def test_demand_includes_calls_of_the_stage_that_have_not_arrived() -> None:
    """One of three calls, with two missing, has the same demand as all three."""
    rows = [request(name, slo=compound(60.0, program="p"), max_tokens=100) for name in "abc"]
    model = MODEL._replace(pair_s=0.125)
    whole = step(*rows, model=model)
    first = step(rows[0]._replace(stage_missing=2), model=model)
    left, right = (
        present_programs(view, calls_of(view.requests, view.model)) for view in (whole, first)
    )
    for name in ("prompts_s", "decode_tokens", "context_tokens", "serial_tokens", "tokens"):
        assert getattr(left, name) == pytest.approx(getattr(right, name)), name


def test_demand_includes_the_attention_of_long_prompts() -> None:
    """Computed tokens precede the others and are not computed again."""
    pairs = MODEL._replace(pair_s=0.5)
    fresh = request("a", prompt_tokens=11, max_tokens=1)
    begun = fresh._replace(state=RequestState.RUNNING, computed_tokens=6)
    for row, tokens, before in ((fresh, 10, 0), (begun, 4, 6)):
        views = [step(row, model=model) for model in (MODEL, pairs)]
        plain, priced = [
            present_programs(view, calls_of(view.requests, view.model)).demand_s(view.model)
            for view in views
        ]
        assert priced - plain == pytest.approx(0.5 * tokens * (before + tokens / 2))


def test_cached_prompt_tokens_of_a_waiting_request_are_not_computed() -> None:
    """Once it has begun, computed_tokens contains the cached tokens."""
    model = StepModel(base_s=0.5, token_s=0.25)
    waiting = request("waiting", prompt_tokens=100, cached_tokens=64)
    prefill = running("prefill", prompt_tokens=100, cached_tokens=64, computed_tokens=32)
    calls = calls_of(step(waiting, prefill).requests, model)
    assert calls.uncomputed.tolist() == [35, 67]
    assert calls.prompt_s.tolist() == [0.25 * 35, 0.25 * 67]


def test_tokens_that_later_calls_will_find_in_the_prefix_cache_have_no_demand() -> None:
    """They count as goodput all the same."""
    model = StepModel(base_s=0.5, token_s=0.25)
    slo = compound(90.0, final_s=200.0, program="p", future=FutureWork(2.0, 400.0, 0.0, 1.0, 0.0))
    rows = [request("a", slo=slo, prompt_tokens=1, prefix_hit_rate=share) for share in (0.0, 0.75)]
    views = [step(row, model=model) for row in rows]
    plain, cached = (present_programs(view, calls_of(view.requests, model)) for view in views)
    assert (plain.prompts_s[0], cached.prompts_s[0]) == (100.0, 25.0)
    assert plain.tokens == cached.tokens

"""The dynamic programme accepts the largest set of requests that can be in time."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.policies.baselines.slos_serve_admission import Demand, accepted_indices, demand_until
from serving.requests import Ints
from serving.view import StepModel, StepView
from tests.strategies import law
from tests.unit.serving.serving_examples import deadline, latency, request, step

STEP_S = 0.1
SHARE = 0.8  # of a step, after its fixed cost
NO_LIMIT = 100


def demand(rows: list[tuple[float, float, float, float, float]]) -> Demand:
    return Demand(*np.array(rows, dtype=np.float64).T)


def view_of(num_streams: int, num_paced: int = 0, **changes: Any) -> StepView:
    slos = [latency(1.0, 0.1)] * num_streams + [deadline(9.0)] * num_paced
    requests = [request(str(index), slo=slo) for index, slo in enumerate(slos)]
    return step(*requests, model=StepModel(base_s=STEP_S * (1 - SHARE)), **changes)


def accepted(
    view: StepView, needs: Demand, kept: Ints, waiting: Ints, max_accepted: int
) -> set[int]:
    chosen = accepted_indices(view, needs, kept, waiting, step_s=STEP_S, max_accepted=max_accepted)
    assert len(set(chosen.tolist())) == len(chosen)
    return set(chosen.tolist())


def can_be_served(needs: Demand, kept: Ints, group: tuple[int, ...], times_s: list[float]) -> bool:
    """Whether the demand of the group and the kept requests fits in the capacity at each time."""
    rate = {index: needs.later_s[index] / needs.span_s[index] for index in group}
    if sum(rate.values()) > SHARE + 1e-9:
        return False
    for now_s in times_s:
        own_s = sum(
            needs.prompt_s[index] + rate[index] * (now_s - needs.prefill_due_s[index])
            for index in group
            if needs.prefill_due_s[index] <= now_s
        )
        left_s = SHARE * now_s - own_s - demand_until(needs, kept, np.array([now_s]))[0]
        begun = any(needs.prefill_due_s[index] <= now_s for index in group)
        if begun and left_s < -1e-9:
            return False
    return True


quarters = st.integers(1, 24).map(lambda count: count / 4)


@law
@given(
    st.lists(st.tuples(quarters, quarters), min_size=1, max_size=7),
    st.lists(st.tuples(quarters, quarters), max_size=2),
    st.integers(0, 8),
    st.sampled_from([0.0, 0.0625, 0.125]),
)
def test_no_larger_set_than_the_accepted_one_can_be_served(
    prompts: list[tuple[float, float]],
    served: list[tuple[float, float]],
    max_accepted: int,
    rate: float,
) -> None:
    """Compared with every subset; all answers have the same rate, so the tiers are exact."""
    span_s = 1024.0
    rows = [(prompt_s, due_s, rate * span_s, span_s, 1.0) for prompt_s, due_s in prompts]
    rows += [(0.0, 0.0, later_s, span_s, 1.0) for later_s, span_s in served]
    needs = demand(rows)
    waiting, kept = np.arange(len(prompts)), np.arange(len(prompts), len(rows))
    chosen = accepted(view_of(len(rows)), needs, kept, waiting, max_accepted)
    times_s = sorted(due_s for _, due_s in prompts)
    best = max(
        size
        for size in range(min(max_accepted, len(prompts)) + 1)
        for group in combinations(range(len(prompts)), size)
        if can_be_served(needs, kept, group, times_s)
    )
    assert len(chosen) == best
    assert can_be_served(needs, kept, tuple(chosen), times_s)


def test_two_short_prompts_are_accepted_instead_of_an_earlier_long_one() -> None:
    """Admission in the order of deadlines would accept the long one alone."""
    needs = demand(
        [(0.8, 1.0, 0.0, 1.0, 1.0), (0.5, 1.1, 0.0, 1.0, 1.0), (0.4, 1.2, 0.0, 1.0, 1.0)]
    )
    chosen = accepted(view_of(3), needs, np.array([], dtype=np.int64), np.arange(3), NO_LIMIT)
    assert chosen == {1, 2}


def test_answers_that_together_exceed_the_capacity_are_not_all_accepted() -> None:
    needs = demand([(0.1, 5.0, 3.0, 10.0, 1.0)] * 4)
    none = np.array([], dtype=np.int64)
    assert len(accepted(view_of(4), needs, none, np.arange(4), NO_LIMIT)) == 2
    assert len(accepted(view_of(2, 2), needs, none, np.arange(4), NO_LIMIT)) == 2


def test_kept_requests_come_first_even_if_they_exceed_the_capacity() -> None:
    needs = demand([(0.1, 5.0, 0.0, 1.0, 1.0), (9.0, 4.0, 0.0, 1.0, 1.0)])
    none = np.array([], dtype=np.int64)
    assert accepted(view_of(2), needs, none, np.arange(1), NO_LIMIT) == {0}
    assert accepted(view_of(2), needs, np.array([1]), np.arange(1), NO_LIMIT) == set()


def test_no_request_is_accepted_beyond_the_memory_that_the_kept_ones_leave() -> None:
    needs = demand([(0.1, 5.0, 0.0, 1.0, 40.0)] * 3)
    view = view_of(3, kv_tokens=100, free_kv_tokens=100)
    assert len(accepted(view, needs, np.array([2]), np.arange(2), NO_LIMIT)) == 1
    assert len(accepted(view, needs, np.array([], dtype=np.int64), np.arange(3), 9)) == 2


def test_the_demand_of_an_answer_is_spread_evenly_until_its_end() -> None:
    needs = demand([(0.0, 0.0, 3.0, 6.0, 1.0), (1.0, 2.0, 4.0, 4.0, 1.0)])
    until_s = demand_until(needs, np.arange(2), np.array([1.0, 2.0, 4.0, 60.0]))
    assert until_s.tolist() == [0.5, 2.0, 5.0, 8.0]

"""The dynamic programme accepts as many as any schedule could, and never more."""

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
EVERYBODY = 100


def demand(rows: list[tuple[float, float, float, float, float]]) -> Demand:
    return Demand(*np.array(rows, dtype=np.float64).T)


def view_of(num_streams: int, num_paced: int = 0, **changes: Any) -> StepView:
    slos = [latency(1.0, 0.1)] * num_streams + [deadline(9.0)] * num_paced
    requests = [request(str(place), slo=slo) for place, slo in enumerate(slos)]
    return step(*requests, model=StepModel(base_s=STEP_S * (1 - SHARE)), **changes)


def accepted(view: StepView, asked: Demand, kept: Ints, asking: Ints, places: int) -> set[int]:
    chosen = accepted_indices(view, asked, kept, asking, step_s=STEP_S, places=places)
    assert len(set(chosen.tolist())) == len(chosen)
    return set(chosen.tolist())


def can_be_served(asked: Demand, kept: Ints, group: tuple[int, ...], moments: list[float]) -> bool:
    """At every moment the group's prompts and answers, and the kept's, have had their time."""
    rate = {place: asked.later_s[place] / asked.span_s[place] for place in group}
    if sum(rate.values()) > SHARE + 1e-9:
        return False
    for now_s in moments:
        own_s = sum(
            asked.prompt_s[place] + rate[place] * (now_s - asked.prefill_due_s[place])
            for place in group
            if asked.prefill_due_s[place] <= now_s
        )
        left_s = SHARE * now_s - own_s - demand_until(asked, kept, np.array([now_s]))[0]
        begun = any(asked.prefill_due_s[place] <= now_s for place in group)
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
def test_no_set_larger_than_the_accepted_could_be_served(
    newcomers: list[tuple[float, float]],
    served: list[tuple[float, float]],
    places: int,
    rate: float,
) -> None:
    """Against every subset, where all answers ask the same: there the tiers lose nothing."""
    span_s = 1024.0
    rows = [(prompt_s, due_s, rate * span_s, span_s, 1.0) for prompt_s, due_s in newcomers]
    rows += [(0.0, 0.0, later_s, span_s, 1.0) for later_s, span_s in served]
    asked = demand(rows)
    asking, kept = np.arange(len(newcomers)), np.arange(len(newcomers), len(rows))
    got = accepted(view_of(len(rows)), asked, kept, asking, places)
    moments = sorted(due_s for _, due_s in newcomers)
    best = max(
        size
        for size in range(min(places, len(newcomers)) + 1)
        for group in combinations(range(len(newcomers)), size)
        if can_be_served(asked, kept, group, moments)
    )
    assert len(got) == best
    assert can_be_served(asked, kept, tuple(got), moments)


def test_a_short_prompt_behind_a_long_one_is_accepted_in_its_stead() -> None:
    """First come, first admitted would take the one and decline the two."""
    asked = demand(
        [(0.8, 1.0, 0.0, 1.0, 1.0), (0.5, 1.1, 0.0, 1.0, 1.0), (0.4, 1.2, 0.0, 1.0, 1.0)]
    )
    got = accepted(view_of(3), asked, np.array([], dtype=np.int64), np.arange(3), EVERYBODY)
    assert got == {1, 2}


def test_answers_that_together_exceed_the_machine_are_not_all_accepted() -> None:
    asked = demand([(0.1, 5.0, 3.0, 10.0, 1.0)] * 4)
    nobody = np.array([], dtype=np.int64)
    assert len(accepted(view_of(4), asked, nobody, np.arange(4), EVERYBODY)) == 2
    assert len(accepted(view_of(2, 2), asked, nobody, np.arange(4), EVERYBODY)) == 2


def test_the_kept_come_first_even_where_they_exceed_the_machine() -> None:
    asked = demand([(0.1, 5.0, 0.0, 1.0, 1.0), (9.0, 4.0, 0.0, 1.0, 1.0)])
    nobody = np.array([], dtype=np.int64)
    assert accepted(view_of(2), asked, nobody, np.arange(1), EVERYBODY) == {0}
    assert accepted(view_of(2), asked, np.array([1]), np.arange(1), EVERYBODY) == set()


def test_nobody_is_accepted_beyond_the_memory_that_the_kept_leave() -> None:
    asked = demand([(0.1, 5.0, 0.0, 1.0, 40.0)] * 3)
    view = view_of(3, kv_tokens=100, free_kv_tokens=100)
    assert len(accepted(view, asked, np.array([2]), np.arange(2), EVERYBODY)) == 1
    assert len(accepted(view, asked, np.array([], dtype=np.int64), np.arange(3), 9)) == 2


def test_who_decodes_asks_evenly_until_its_end_and_nothing_after() -> None:
    asked = demand([(0.0, 0.0, 3.0, 6.0, 1.0), (1.0, 2.0, 4.0, 4.0, 1.0)])
    got = demand_until(asked, np.arange(2), np.array([1.0, 2.0, 4.0, 60.0]))
    assert got.tolist() == [0.5, 2.0, 5.0, 8.0]

"""Fairness: the order of users by served tokens, and the limit on users who are ahead."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidEngineConfig
from serving.policies.fairness import (
    LEAD,
    LIMITED_STEPS,
    MIN_CHUNK_TOKENS,
    _chunk_tokens,
    _decode_s,
    _within_shares,
    fair_order,
    fair_scores,
    limit_users_ahead,
    mix_in_fairness,
)
from serving.policies.ranking import order_by, sorted_indices
from serving.policies.table import POLICIES, PolicySpec
from serving.policies.urgency import deadline_class
from serving.requests import Requests, RequestView
from serving.slo import OnLate, Slo
from serving.view import Plan, StepModel, StepView, plan_faults
from tests.strategies import AnyPolicy, law, of_each_policy, step_views
from tests.unit.serving.serving_examples import deadline, request, running, step

fractions = st.floats(0.0, 1.0, exclude_min=True)


@st.composite
def served_views(draw: st.DrawFn) -> StepView:
    """Views of unequally served users, with a step model of coefficients above 0."""
    view = draw(step_views(max_requests=6))
    served = {user: float(draw(st.integers(0, 10**6))) for user in ("one", "two", "three")}
    rows = []
    for row in view.requests:
        user = draw(st.sampled_from(sorted(served)))
        rows.append(of_user(user, served[user], row))
    model = StepModel(0.01, 1e-5, 1e-4, 1e-7)
    return view._replace(requests=Requests.of(rows), model=model)


def of_user(user: str, tokens: float, row: RequestView) -> RequestView:
    return row._replace(slo=replace(row.slo, user=user), user_tokens=tokens)


def test_fair_scores_are_linear_in_the_tokens_served() -> None:
    served = (0.0, 25.0, 100.0, 100.0)
    assert fair_scores(np.array(served)).tolist() == [1.0, 0.75, 0.0, 0.0]
    assert fair_scores(np.array(served[2:])).tolist() == [1.0, 1.0]
    assert fair_scores(np.zeros(0)).tolist() == []


@law
@given(view=served_views(), fairness=fractions)
def test_the_order_of_a_single_user_never_changes(view: StepView, fairness: float) -> None:
    alone = view._replace(requests=Requests.of(of_user("one", 7.0, row) for row in view.requests))
    order = sorted_indices(alone.requests, deadline_class(alone), alone.requests.priority)
    assert fair_order(alone, order, fairness).tolist() == order.tolist()


@law
@given(view=served_views(), fairness=fractions)
def test_fairness_moves_no_request_across_deadline_classes(view: StepView, fairness: float) -> None:
    order = sorted_indices(view.requests, view.requests.priority)
    classes = deadline_class(view)[fair_order(view, order, fairness)]
    assert np.all(np.diff(classes) >= 0)


@law
@given(view=served_views())
def test_fairness_of_1_orders_by_served_tokens(view: StepView) -> None:
    order = fair_order(view, sorted_indices(view.requests, view.requests.priority), 1.0)
    rows = [view.requests[int(index)] for index in order]
    classes = deadline_class(view)[order].tolist()
    keys = [(each, row.user_tokens, row.priority) for each, row in zip(classes, rows, strict=True)]
    uncomputed = [row.prompt_tokens + row.output_tokens - row.computed_tokens for row in rows]
    in_prefill = [
        row.computed_tokens > 0 and tokens > 1 for row, tokens in zip(rows, uncomputed, strict=True)
    ]
    by_turn = [key for key, has_begun in zip(keys, in_prefill, strict=True) if not has_begun]
    assert by_turn == sorted(by_turn)


def test_a_prefill_that_has_begun_is_completed_before_another_user_s_turn() -> None:
    """If memory fits one prompt, two users with alternating turns would complete neither."""
    for tokens in (1.0, 1000.0):
        prefill = of_user("a", tokens, running("prefill", prompt_tokens=90))
        other = of_user("b", 10.0, request("other", prompt_tokens=90))
        plan = order_by(step(other, prefill), None, np.array([0, 1]), batch=1, fairness=1.0)
        assert plan.order == ("prefill", "other")
        decode = prefill._replace(computed_tokens=90)
        plan = order_by(step(other, decode), None, np.array([0, 1]), batch=1, fairness=1.0)
        assert plan.order[0] == ("prefill" if tokens < 10.0 else "other")


@law
@given(view=served_views(), share_s=st.floats(0.0, 0.5), may_prefill=st.booleans())
def test_shares_are_applied_to_each_user_separately(
    view: StepView, share_s: float, may_prefill: bool
) -> None:
    rows = list(view.requests)
    decode_s = _decode_s(view)
    expected = set()
    for user in {row.slo.user for row in rows}:
        taken_s = prefill_tokens = 0.0
        for index, row in enumerate(rows):
            if row.slo.user != user:
                continue
            uncomputed = row.prompt_tokens + row.output_tokens - row.computed_tokens
            if uncomputed > 1:
                limit_tokens = LIMITED_STEPS * _chunk_tokens(view, share_s)
                fits = may_prefill and prefill_tokens < limit_tokens
                prefill_tokens += uncomputed
            else:
                fits = taken_s < share_s
                taken_s += decode_s[index]
            expected |= {index} if fits else set()
    fitting = _within_shares(view, np.arange(len(rows)), share_s, may_prefill=may_prefill)
    assert set(fitting.tolist()) == expected


@pytest.mark.parametrize(("fairness", "first"), [(0.4, "rank"), (0.6, "poor")])
def test_f_weighs_served_tokens_against_rank(fairness: float, first: str) -> None:
    """The best rank and most served user, against the worst rank and least served user."""
    view = step(
        of_user("a", 100.0, request("rank", priority=0)), of_user("b", 0.0, request("poor"))
    )
    plan = order_by(view, None, np.array([0, 1]), batch=1, fairness=fairness)
    assert plan.order[0] == first
    assert plan.run == {first}


@law
@given(view=served_views(), batch=st.integers(0, 5))
def test_a_fairness_of_0_is_the_order_of_the_keys(view: StepView, batch: int) -> None:
    keys = view.requests.priority
    ids = view.requests.request_id[sorted_indices(view.requests, keys)].tolist()
    plan = order_by(view, None, keys, batch=batch, fairness=0.0)
    dropped = {request_id for request_id, _ in plan.drop}
    num_kept = len(plan.order) - len(dropped)
    assert list(plan.order[:num_kept]) == [each for each in ids if each not in dropped]


@pytest.mark.parametrize("fairness", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_fairness_outside_0_to_1_is_refused(fairness: float) -> None:
    with pytest.raises(InvalidEngineConfig, match="from 0 to 1"):
        mix_in_fairness(np.zeros(1), np.zeros(1), fairness)
    with pytest.raises(InvalidEngineConfig, match="from 0 to 1"):
        PolicySpec("edf", {"fairness": fairness})


@law
@given(view=served_views(), fairness=fractions)
@of_each_policy()
def test_the_plan_of_every_policy_with_fairness_satisfies_the_contract(
    policy: AnyPolicy, view: StepView, fairness: float
) -> None:
    assert plan_faults(view, policy(view, fairness=fairness)) == []


def crowd(*, num_flooding: int, flooder_tokens: float, **changes: Any) -> StepView:
    """Nine users with one decode each, and a flooder with many, first in every order."""
    rows = [
        of_user("flooder", flooder_tokens, running(f"flood {index:03}", output_tokens=1, **changes))
        for index in range(num_flooding)
    ]
    rows += [of_user(f"user {n}", 10.0, running(f"own {n}", output_tokens=1)) for n in range(9)]
    model = StepModel(base_s=0.009, token_s=0.0, sequence_s=0.001)
    return step(*rows, slots=200, step_tokens=2000, model=model)


def plan_of_all(view: StepView) -> Plan:
    """The plan that runs every request."""
    ids = tuple(view.requests.request_id.tolist())
    return Plan(order=ids, run=frozenset(ids))


def test_a_user_ahead_gets_an_equal_share_of_a_step_and_the_others_are_not_limited() -> None:
    """The others take 9 ms of decodes and 9 ms fixed cost: a tenth of 20 ms is 2 decodes."""
    view = crowd(num_flooding=100, flooder_tokens=1e6)
    plan = limit_users_ahead(view, plan_of_all(view))
    assert plan.run == {"flood 000", "flood 001"} | {f"own {n}" for n in range(9)}
    assert set(plan.order[: len(plan.run)]) == plan.run
    assert sorted(plan.order) == sorted(view.requests.request_id)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_with_fairness_limits_a_user_ahead(name: str) -> None:
    view = crowd(num_flooding=100, flooder_tokens=1e6)
    policy = POLICIES[name]
    assert sum(each.startswith("flood") for each in policy(view).run) > 2
    fair_plan = policy(view, fairness=0.5)
    assert 0 < sum(each.startswith("flood") for each in fair_plan.run) <= 2


def test_a_user_within_the_lead_is_not_limited() -> None:
    """The nine other users were served 10 tokens each."""
    view = crowd(num_flooding=100, flooder_tokens=LEAD * 10.0)
    assert limit_users_ahead(view, plan_of_all(view)) == plan_of_all(view)
    view = crowd(num_flooding=100, flooder_tokens=LEAD * 10.0 + 1.0)
    assert len(limit_users_ahead(view, plan_of_all(view)).run) == 11


def test_an_exempt_request_is_not_limited_and_counts_as_one_of_the_others() -> None:
    """With it the others take 10 ms of decodes and 9 ms fixed cost; a tenth of it is 1.9 ms."""
    view = crowd(num_flooding=100, flooder_tokens=1e6)
    exempt = view.requests.request_id == "flood 099"
    plan = limit_users_ahead(view, plan_of_all(view), unless=exempt)
    own = {f"own {n}" for n in range(9)}
    assert plan.run == {"flood 000", "flood 001", "flood 099"} | own


@pytest.mark.parametrize("name", POLICIES)
def test_late_work_of_other_users_does_not_run_instead_of_limited_requests(name: str) -> None:
    view = crowd(num_flooding=100, flooder_tokens=1e6, slo=deadline(900.0))
    late = replace(deadline(1.0), on_late=OnLate.CONTINUE)
    row = of_user("user 0", 10.0, running("late", arrival_s=-9.0, output_tokens=1, slo=late))
    view = view._replace(requests=Requests.of([*view.requests, row]))
    plan = POLICIES[name](view, fairness=0.5)
    assert plan_faults(view, plan) == []
    if any(each.startswith("flood") and each not in plan.run for each in plan.order):
        assert plan.order[-1] == "late"
        assert "late" not in plan.run


def test_a_single_user_is_not_limited() -> None:
    view = crowd(num_flooding=100, flooder_tokens=1e6)
    alone = view._replace(requests=Requests.of(list(view.requests)[:100]))
    assert limit_users_ahead(alone, plan_of_all(alone)) == plan_of_all(alone)


def test_prefills_of_a_user_ahead_wait_for_those_of_the_others() -> None:
    flood = [
        of_user("flooder", 1e6, request(f"flood {n}", prompt_tokens=300, max_tokens=9))
        for n in range(9)
    ]
    others = [of_user(f"user {n}", 1.0, running(f"own {n}", output_tokens=1)) for n in range(3)]
    model = StepModel(base_s=3 * 2**-6, token_s=2**-13)
    view = step(*flood, *others, slots=50, step_tokens=2000, model=model)
    plan = limit_users_ahead(view, plan_of_all(view))
    # Its share is a third of the others' time: 129 tokens per step, 1290 in ten steps.
    assert plan.chunk_tokens == 129
    assert plan.run == {f"flood {n}" for n in range(5)} | {f"own {n}" for n in range(3)}
    assert plan.steps == 10

    prefill = of_user("user 0", 1.0, request("prefill", prompt_tokens=300))
    view = step(*flood, *others, prefill, slots=50, step_tokens=2000, model=model)
    plan = limit_users_ahead(view, plan_of_all(view))
    assert plan.run == {"prefill", *(f"own {n}" for n in range(3))}
    assert plan.chunk_tokens is None


def test_the_chunk_of_a_tiny_share_is_the_minimum_chunk() -> None:
    flood = of_user("flooder", 1e6, request("flood", prompt_tokens=300))
    other = of_user("user", 1.0, running("own", output_tokens=1))
    view = step(flood, other, model=StepModel(base_s=1e-6, token_s=1e-3), step_tokens=2000)
    plan = limit_users_ahead(view, plan_of_all(view))
    assert plan.run == {"flood", "own"}
    assert plan.chunk_tokens == MIN_CHUNK_TOKENS


def test_a_request_runs_even_if_only_prompts_of_a_user_ahead_are_in_the_plan() -> None:
    """The other user's prompt is not in the plan, so it does not keep the prefill back."""
    flood = of_user("flooder", 1e6, request("flood", prompt_tokens=300))
    other = of_user("user", 0.0, request("held", slo=deadline(5.0)))
    view = step(flood, other)
    plan = Plan(order=("flood", "held"), run=frozenset({"flood"}))
    assert limit_users_ahead(view, plan).run == {"flood"}


def test_requests_without_a_user_are_one_user() -> None:
    rows = [request(str(n), slo=Slo(), user_tokens=5.0) for n in range(4)]
    view = step(*rows)
    assert limit_users_ahead(view, plan_of_all(view)) == plan_of_all(view)

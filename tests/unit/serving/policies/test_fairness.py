"""Fairness: whose turn it is, and what one user may take from the others."""

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
    fair,
    fair_order,
    limited,
    mixed,
)
from serving.policies.ranking import order_by, sorted_indices
from serving.policies.table import POLICIES, PolicySpec
from serving.policies.urgency import deadline_class
from serving.requests import Requests, RequestView
from serving.slo import OnLate, Slo
from serving.view import Plan, StepModel, StepView, plan_faults
from tests.strategies import law, step_views
from tests.unit.serving.serving_examples import deadline, request, running, step

fractions = st.floats(0.0, 1.0, exclude_min=True)


@st.composite
def served_views(draw: st.DrawFn) -> StepView:
    """Views whose users were served unequally, and whose steps cost something."""
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


def test_fair_is_linear_in_what_a_user_was_served() -> None:
    served = (0.0, 25.0, 100.0, 100.0)
    assert fair(np.array(served)).tolist() == [1.0, 0.75, 0.0, 0.0]
    assert fair(np.array(served[2:])).tolist() == [1.0, 1.0]
    assert fair(np.zeros(0)).tolist() == []


@law
@given(view=served_views(), fairness=fractions)
def test_a_single_user_s_order_never_changes(view: StepView, fairness: float) -> None:
    alone = view._replace(requests=Requests.of(of_user("one", 7.0, row) for row in view.requests))
    order = sorted_indices(alone.requests, deadline_class(alone), alone.requests.priority)
    assert fair_order(alone, order, fairness).tolist() == order.tolist()


@law
@given(view=served_views(), fairness=fractions)
def test_fairness_moves_nobody_across_standings(view: StepView, fairness: float) -> None:
    order = sorted_indices(view.requests, view.requests.priority)
    stands = deadline_class(view)[fair_order(view, order, fairness)]
    assert np.all(np.diff(stands) >= 0)


@law
@given(view=served_views())
def test_fairness_alone_is_the_order_of_what_users_were_served(view: StepView) -> None:
    order = fair_order(view, sorted_indices(view.requests, view.requests.priority), 1.0)
    rows = [view.requests[int(place)] for place in order]
    stands = deadline_class(view)[order].tolist()
    keys = [(stand, row.user_tokens, row.priority) for stand, row in zip(stands, rows, strict=True)]
    unread = [row.prompt_tokens + row.output_tokens - row.computed_tokens for row in rows]
    begun = [row.computed_tokens > 0 and left > 1 for row, left in zip(rows, unread, strict=True)]
    turns = [key for key, is_begun in zip(keys, begun, strict=True) if not is_begun]
    assert turns == sorted(turns)


def test_a_prompt_under_way_is_read_to_its_end_whosever_turn_comes_meanwhile() -> None:
    """Where one fits into memory, two whose turns alternate would read neither to its end."""
    for tokens in (1.0, 1000.0):
        begun = of_user("a", tokens, running("begun", prompt_tokens=90))
        other = of_user("b", 10.0, request("other", prompt_tokens=90))
        plan = order_by(step(other, begun), None, np.array([0, 1]), batch=1, fairness=1.0)
        assert plan.order == ("begun", "other")
        read = begun._replace(computed_tokens=90)
        plan = order_by(step(other, read), None, np.array([0, 1]), batch=1, fairness=1.0)
        assert plan.order[0] == ("begun" if tokens < 10.0 else "other")


@law
@given(view=served_views(), share_s=st.floats(0.0, 0.5), may_read=st.booleans())
def test_what_fits_each_user_s_share_is_as_if_each_was_asked_alone(
    view: StepView, share_s: float, may_read: bool
) -> None:
    rows = list(view.requests)
    decode_s = _decode_s(view)
    fits = set()
    for user in {row.slo.user for row in rows}:
        taken_s = read = 0.0
        for place, row in enumerate(rows):
            if row.slo.user != user:
                continue
            unread = row.prompt_tokens + row.output_tokens - row.computed_tokens
            if unread > 1:
                may = may_read and read < LIMITED_STEPS * _chunk_tokens(view, share_s)
                read += unread
            else:
                may = taken_s < share_s
                taken_s += decode_s[place]
            fits |= {place} if may else set()
    shown = _within_shares(view, np.arange(len(rows)), share_s, may_read=may_read)
    assert set(shown.tolist()) == fits


@pytest.mark.parametrize(("fairness", "first"), [(0.4, "rank"), (0.6, "poor")])
def test_f_says_how_much_of_the_rank_a_turn_is_worth(fairness: float, first: str) -> None:
    """Best rank and most served, against worst rank and least served."""
    view = step(
        of_user("a", 100.0, request("rank", priority=0)), of_user("b", 0.0, request("poor"))
    )
    plan = order_by(view, None, np.array([0, 1]), batch=1, fairness=fairness)
    assert plan.order[0] == first
    assert plan.run == {first}


@law
@given(view=served_views(), batch=st.integers(0, 5))
def test_no_fairness_is_the_order_of_the_keys(view: StepView, batch: int) -> None:
    keys = view.requests.priority
    names = view.requests.request_id[sorted_indices(view.requests, keys)].tolist()
    plan = order_by(view, None, keys, batch=batch, fairness=0.0)
    gone = {name for name, _ in plan.drop}
    assert list(plan.order[: len(plan.order) - len(gone)]) == [n for n in names if n not in gone]


@pytest.mark.parametrize("fairness", [-0.1, 1.1, float("nan"), float("inf")])
def test_a_share_that_is_none_fails_before_it_reaches_an_engine(fairness: float) -> None:
    with pytest.raises(InvalidEngineConfig, match="from 0 to 1"):
        mixed(np.zeros(1), np.zeros(1), fairness)
    with pytest.raises(InvalidEngineConfig, match="from 0 to 1"):
        PolicySpec("edf", {"fairness": fairness})


@pytest.mark.parametrize("name", POLICIES)
@law
@given(view=served_views(), fairness=fractions)
def test_every_policy_s_fair_plan_is_one_that_the_engine_can_honour(
    name: str, view: StepView, fairness: float
) -> None:
    assert plan_faults(view, POLICIES[name](view, fairness=fairness)) == []


def crowd(*, num_flooding: int, flooder_tokens: float, **changes: Any) -> StepView:
    """Nine users with a decode each, and one with many, who comes first in every order."""
    rows = [
        of_user("flooder", flooder_tokens, running(f"flood {index:03}", output_tokens=1, **changes))
        for index in range(num_flooding)
    ]
    rows += [of_user(f"user {n}", 10.0, running(f"own {n}", output_tokens=1)) for n in range(9)]
    model = StepModel(base_s=0.009, token_s=0.0, sequence_s=0.001)
    return step(*rows, slots=200, step_tokens=2000, model=model)


def everybody(view: StepView) -> Plan:
    names = tuple(view.requests.request_id.tolist())
    return Plan(order=names, run=frozenset(names))


def test_who_is_ahead_gets_an_equal_share_of_a_step_and_the_others_all_they_ask() -> None:
    """Nine others take 9 ms of decodes and the base of 9 ms: a tenth of 20 ms are 2 decodes."""
    view = crowd(num_flooding=100, flooder_tokens=1e6)
    plan = limited(view, everybody(view))
    assert plan.run == {"flood 000", "flood 001"} | {f"own {n}" for n in range(9)}
    assert set(plan.order[: len(plan.run)]) == plan.run
    assert sorted(plan.order) == sorted(view.requests.request_id)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_with_fairness_limits_who_is_ahead(name: str) -> None:
    view = crowd(num_flooding=100, flooder_tokens=1e6)
    policy = POLICIES[name]
    assert sum(each.startswith("flood") for each in policy(view).run) > 2
    fair_plan = policy(view, fairness=0.5)
    assert 0 < sum(each.startswith("flood") for each in fair_plan.run) <= 2


def test_nobody_is_limited_who_was_served_no_more_than_the_lead_allows() -> None:
    """The nine others were served 10 tokens each."""
    view = crowd(num_flooding=100, flooder_tokens=LEAD * 10.0)
    assert limited(view, everybody(view)) == everybody(view)
    view = crowd(num_flooding=100, flooder_tokens=LEAD * 10.0 + 1.0)
    assert len(limited(view, everybody(view)).run) == 11


def test_what_is_spared_is_not_limited_and_counts_as_the_others_do() -> None:
    """With it they take 10 ms of decodes and the base of 9 ms: of ten users a tenth is 1.9 ms."""
    view = crowd(num_flooding=100, flooder_tokens=1e6)
    spared = view.requests.request_id == "flood 099"
    plan = limited(view, everybody(view), unless=spared)
    own = {f"own {n}" for n in range(9)}
    assert plan.run == {"flood 000", "flood 001", "flood 099"} | own


@pytest.mark.parametrize("name", POLICIES)
def test_late_work_of_others_does_not_run_in_the_place_of_what_is_held(name: str) -> None:
    view = crowd(num_flooding=100, flooder_tokens=1e6, slo=deadline(900.0))
    late = replace(deadline(1.0), on_late=OnLate.CONTINUE)
    row = of_user("user 0", 10.0, running("late", arrival_s=-9.0, output_tokens=1, slo=late))
    view = view._replace(requests=Requests.of([*view.requests, row]))
    plan = POLICIES[name](view, fairness=0.5)
    assert plan_faults(view, plan) == []
    if any(each.startswith("flood") and each not in plan.run for each in plan.order):
        assert plan.order[-1] == "late"
        assert "late" not in plan.run


def test_a_user_alone_has_the_whole_machine() -> None:
    view = crowd(num_flooding=100, flooder_tokens=1e6)
    alone = view._replace(requests=Requests.of(list(view.requests)[:100]))
    assert limited(alone, everybody(alone)) == everybody(alone)


def test_prompts_of_who_is_ahead_wait_for_those_of_the_others() -> None:
    flood = [
        of_user("flooder", 1e6, request(f"flood {n}", prompt_tokens=300, max_tokens=9))
        for n in range(9)
    ]
    others = [of_user(f"user {n}", 1.0, running(f"own {n}", output_tokens=1)) for n in range(3)]
    model = StepModel(base_s=3 * 2**-6, token_s=2**-13)
    view = step(*flood, *others, slots=50, step_tokens=2000, model=model)
    plan = limited(view, everybody(view))
    # A step has a third of the others' time for it: 128 tokens and 1, in ten steps 1290 of them.
    assert plan.chunk_tokens == 129
    assert plan.run == {f"flood {n}" for n in range(5)} | {f"own {n}" for n in range(3)}
    assert plan.steps == 10

    unread = of_user("user 0", 1.0, request("unread", prompt_tokens=300))
    view = step(*flood, *others, unread, slots=50, step_tokens=2000, model=model)
    plan = limited(view, everybody(view))
    assert plan.run == {"unread", *(f"own {n}" for n in range(3))}
    assert plan.chunk_tokens is None


def test_a_prompt_is_read_however_small_its_user_s_share_is() -> None:
    flood = of_user("flooder", 1e6, request("flood", prompt_tokens=300))
    other = of_user("user", 1.0, running("own", output_tokens=1))
    view = step(flood, other, model=StepModel(base_s=1e-6, token_s=1e-3), step_tokens=2000)
    plan = limited(view, everybody(view))
    assert plan.run == {"flood", "own"}
    assert plan.chunk_tokens == MIN_CHUNK_TOKENS


def test_somebody_runs_though_only_the_prompts_of_who_is_ahead_are_admitted() -> None:
    """The other waits for a place: its unread prompt does not stand in the way."""
    flood = of_user("flooder", 1e6, request("flood", prompt_tokens=300))
    other = of_user("user", 0.0, request("held", slo=deadline(5.0)))
    view = step(flood, other)
    plan = Plan(order=("flood", "held"), run=frozenset({"flood"}))
    assert limited(view, plan).run == {"flood"}


def test_requests_without_a_user_are_one_user() -> None:
    rows = [request(str(n), slo=Slo(), user_tokens=5.0) for n in range(4)]
    view = step(*rows)
    assert limited(view, everybody(view)) == everybody(view)

"""What every policy owes the engine, whatever it is shown."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.policies.table import POLICIES
from serving.slo import SloKind
from serving.view import Plan, RequestView, StepView, plan_faults
from tests.strategies import law, step_views

AnyPolicy = Callable[..., Plan]

every_policy = pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())

DEADLINE_BLIND = {"fcfs"}
"""The control: first come, first served knows no deadline, so law 5 cannot hold for it."""

deadline_aware = {name: policy for name, policy in POLICIES.items() if name not in DEADLINE_BLIND}

batches = st.integers(0, 5)


@every_policy
@law
@given(view=step_views(), batch=batches)
def test_a_plan_is_one_that_the_engine_can_honour(
    policy: AnyPolicy, view: StepView, batch: int
) -> None:
    assert plan_faults(view, policy(view, batch=batch)) == []


@every_policy
@law
@given(view=step_views())
def test_a_policy_orders_each_request_exactly_once(policy: AnyPolicy, view: StepView) -> None:
    """A policy may reorder requests; it may not invent, repeat or lose one."""
    assert sorted(policy(view).order) == sorted(r.request_id for r in view.requests)


@every_policy
@law
@given(view=step_views())
def test_same_view_same_plan(policy: AnyPolicy, view: StepView) -> None:
    assert policy(view) == policy(view)


@every_policy
@law
@given(view=step_views(), data=st.data())
def test_a_plan_does_not_depend_on_how_the_engine_lists_its_requests(
    policy: AnyPolicy, view: StepView, data: st.DataObject
) -> None:
    shuffled = view._replace(requests=tuple(data.draw(st.permutations(view.requests))))
    assert policy(shuffled) == policy(view)


@every_policy
@law
@given(view=step_views(), batch=batches)
def test_no_slot_stays_empty_while_somebody_could_use_it(
    policy: AnyPolicy, view: StepView, batch: int
) -> None:
    plan = policy(view, batch=batch)
    could_run = len(view.requests) - len(plan.drop)
    assert len(plan.run) == min(batch or view.slots, could_run)


@every_policy
@law
@given(view=step_views())
def test_who_runs_precedes_who_is_held(policy: AnyPolicy, view: StepView) -> None:
    plan = policy(view)
    assert set(plan.order[: len(plan.run)]) == plan.run


def expired(request: RequestView, now_s: float) -> bool:
    """Nothing that the request could still produce is in time any more."""
    slo = request.slo
    if slo.kind is SloKind.BEST_EFFORT:
        return False
    if slo.kind is SloKind.LATENCY:
        last_token_due_s = request.arrival_s + slo.ttft_s + (request.max_tokens - 1) * slo.tbt_s
        return now_s >= last_token_due_s
    return now_s >= request.final_s


def feasible(request: RequestView, view: StepView) -> bool:
    """Something that it could still produce is clearly in time."""
    if expired(request, view.now_s):
        return False
    if request.slo.kind is not SloKind.LATENCY:
        return True
    # Due times and earliest times are both linear in the token, so the extremes decide.
    slo, first = request.slo, request.output_tokens
    start_s = request.arrival_s + slo.ttft_s
    return any(
        start_s + token * slo.tbt_s > view.now_s + (token - first + 1) * view.token_s + 1e-6
        for token in (first, request.max_tokens - 1)
        if first <= token < request.max_tokens
    )


@pytest.mark.parametrize("policy", deadline_aware.values(), ids=deadline_aware.keys())
@law
@given(view=step_views(), batch=batches)
def test_expired_work_never_outranks_feasible_work(
    policy: AnyPolicy, view: StepView, batch: int
) -> None:
    """Law 5, for the order and for the slots."""
    plan = policy(view, batch=batch)
    by_id = {request.request_id: request for request in view.requests}
    gone = {request_id for request_id, _ in plan.drop}
    order = [by_id[request_id] for request_id in plan.order if request_id not in gone]
    ranks_late = [rank for rank, request in enumerate(order) if expired(request, view.now_s)]
    ranks_feasible = [rank for rank, request in enumerate(order) if feasible(request, view)]
    if ranks_late and ranks_feasible:
        assert min(ranks_late) > max(ranks_feasible)
        held = any(order[rank].request_id not in plan.run for rank in ranks_feasible)
        late_runs = any(order[rank].request_id in plan.run for rank in ranks_late)
        assert not (held and late_runs)


def test_every_policy_but_the_control_is_held_to_law_5() -> None:
    assert set(POLICIES) - set(deadline_aware) == {"fcfs"}

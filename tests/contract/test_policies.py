"""The laws that the plans of every policy satisfy, for any view."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from serving.policies.table import POLICIES
from serving.requests import Requests, RequestState, RequestView
from serving.slo import FutureWork, Slo, SloKind
from serving.view import Plan, StepModel, StepView, plan_faults
from tests.strategies import AnyPolicy, law, of_each_policy, sketches, slos, step_views

DEADLINE_BLIND = {"fcfs"}
"""First come, first served ignores deadlines, so law 5 does not hold for it."""

WORK_CONSERVING = {
    "fcfs",
    "priority",
    "edf",
    "sjf",
    "srpt",
    "plas",
    "lsdf",
    "calm_published",
}
"""Policies that leave no slot empty. The others hold requests back on purpose: to pace streams, to
meet the SLOs of admitted requests, or because the KV cache is full."""

PACING = {"slai", "rad", "slos_serve"}
"""Policies that plan each step separately and leave out requests that can wait for a later step."""

not_pacing = {name: policy for name, policy in POLICIES.items() if name not in PACING}
work_conserving = {name: POLICIES[name] for name in sorted(WORK_CONSERVING)}
deadline_aware = {name: policy for name, policy in POLICIES.items() if name not in DEADLINE_BLIND}

batches = st.integers(0, 5)


@law
@given(view=step_views(), batch=batches)
@of_each_policy()
def test_a_plan_satisfies_the_contract_of_the_engine(
    policy: AnyPolicy, view: StepView, batch: int
) -> None:
    assert plan_faults(view, policy(view, batch=batch)) == []


@law
@given(view=step_views())
@of_each_policy()
def test_a_policy_orders_each_request_exactly_once(policy: AnyPolicy, view: StepView) -> None:
    """A policy may reorder requests; it may not invent, repeat or lose one."""
    assert sorted(policy(view).order) == sorted(r.request_id for r in view.requests)


@law
@given(view=step_views())
@of_each_policy()
def test_the_same_view_gives_the_same_plan(policy: AnyPolicy, view: StepView) -> None:
    assert policy(view) == policy(view)


@law
@given(view=step_views(), data=st.data())
@of_each_policy()
def test_a_plan_does_not_depend_on_the_order_of_requests_in_the_view(
    policy: AnyPolicy, view: StepView, data: st.DataObject
) -> None:
    shuffled = view._replace(requests=Requests.of(data.draw(st.permutations(list(view.requests)))))
    assert policy(shuffled) == policy(view)


@law
@given(view=step_views(), batch=batches)
@of_each_policy(work_conserving)
def test_no_slot_stays_empty_unless_requests_that_begin_lack_memory(
    policy: AnyPolicy, view: StepView, batch: int
) -> None:
    """A late request that holds KV cache is left out only if feasible prompts need its memory."""
    plan = policy(view, batch=batch)
    could_run = len(view.requests) - len(plan.drop)
    num_empty = min(batch or view.slots, could_run) - len(plan.run)
    assert num_empty >= 0
    if num_empty:
        run = [row for row in view.requests if row.request_id in plan.run]
        begin = [row for row in run if not row.computed_tokens]
        wanted = sum(row.prompt_tokens + row.output_tokens for row in begin)
        assert wanted > view.free_kv_tokens


@law
@given(view=step_views(), batch=batches)
@of_each_policy()
def test_a_request_runs_while_there_is_work(policy: AnyPolicy, view: StepView, batch: int) -> None:
    plan = policy(view, batch=batch)
    could_run = len(view.requests) - len(plan.drop)
    assert bool(plan.run) == bool(could_run)
    holding = sum(each.state is not RequestState.WAITING for each in view.requests)
    assert len(plan.run) <= max(batch or view.slots, holding)


@law
@given(view=step_views())
@of_each_policy()
def test_running_requests_precede_the_others_in_the_order(
    policy: AnyPolicy, view: StepView
) -> None:
    plan = policy(view)
    assert set(plan.order[: len(plan.run)]) == plan.run


def expired(request: RequestView, now_s: float) -> bool:
    """No token that the request could still produce would be in time."""
    slo = request.slo
    if slo.kind is SloKind.BEST_EFFORT:
        return False
    if slo.kind is SloKind.LATENCY:
        last_token_due_s = request.arrival_s + slo.ttft_s + (request.max_tokens - 1) * slo.tbt_s
        return now_s >= last_token_due_s
    return now_s >= request.final_s


def feasible(request: RequestView, view: StepView) -> bool:
    """A token that the request could still produce is clearly in time."""
    if expired(request, view.now_s):
        return False
    if request.slo.kind is not SloKind.LATENCY:
        return True
    # Due times and earliest times are both linear in the token's index: check both ends.
    slo, first = request.slo, request.output_tokens
    start_s = request.arrival_s + slo.ttft_s
    return any(
        start_s + token * slo.tbt_s > view.now_s + (token - first + 1) * view.token_s + 1e-6
        for token in (first, request.max_tokens - 1)
        if first <= token < request.max_tokens
    )


@law
@given(view=step_views(), batch=batches)
@of_each_policy(deadline_aware)
def test_expired_work_never_outranks_feasible_work(
    policy: AnyPolicy, view: StepView, batch: int
) -> None:
    """Law 5, for the order and for the slots."""
    assert_expired_is_last(view, policy(view, batch=batch))


@law
@given(view=step_views(), batch=batches, fairness=st.sampled_from([0.1, 0.5, 1.0]))
@of_each_policy()
def test_expired_work_never_outranks_feasible_work_with_fairness(
    policy: AnyPolicy, view: StepView, batch: int, fairness: float
) -> None:
    """Law 5 with fairness, which makes fcfs rank by deadline class too."""
    assert_expired_is_last(view, policy(view, batch=batch, fairness=fairness))


def assert_expired_is_last(view: StepView, plan: Plan) -> None:
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


def test_law_5_is_tested_for_every_policy_but_fcfs() -> None:
    assert set(POLICIES) - set(deadline_aware) == {"fcfs"}


FAR_S = st.floats(2000, 20_000)
FEW = st.integers(0, 20).map(float)


@st.composite
def quiet_views(draw: st.DrawFn) -> StepView:
    """Low load: slots and memory for all requests, far more time than they need, few arrivals."""
    now_s = draw(st.floats(100, 110))
    some_slos = slos(
        seconds=FAR_S,
        weights=st.sampled_from([0.5, 1.0, 2.0]),
        lengths=sketches(st.integers(1, 200).map(float)),
        programs=st.sampled_from(["", "one", "two"]),
        futures=st.builds(FutureWork, *[FEW] * 5, FEW | st.just(math.inf)),
        stage_calls=st.integers(1, 4),
    )
    rows = [
        draw(quiet_requests(str(number), now_s, some_slos))
        for number in range(draw(st.integers(1, 8)))
    ]
    ended = [
        draw(quiet_requests(f"ended {number}", now_s, some_slos))
        for number in range(draw(st.integers(0, 4)))
    ]
    return StepView(
        now_s=now_s,
        arrivals=Requests.of([*rows, *ended]),
        arrivals_s=60.0,
        requests=Requests.of(rows),
        slots=draw(st.integers(len(rows), 64)),
        step_tokens=2048,
        token_s=0.02,
        prefill_token_s=5e-5,
        mean_step_s=0.03,
        model=StepModel(base_s=0.015, token_s=5e-5, sequence_s=1e-5, context_s=8e-8, pair_s=3e-9),
    )


@st.composite
def quiet_requests(
    draw: st.DrawFn, request_id: str, now_s: float, some_slos: st.SearchStrategy[Slo]
) -> RequestView:
    """A request that arrived recently and is neither late nor far ahead of its SLO."""
    arrival_s = now_s - draw(st.floats(0, 4))  # streams are dropped after 5 s unscheduled
    prompt_tokens, max_tokens = draw(st.integers(1, 500)), draw(st.integers(1, 200))
    in_prefill = draw(st.booleans())
    return RequestView(
        request_id=request_id,
        arrival_s=arrival_s,
        slo=draw(some_slos),
        prompt_tokens=prompt_tokens,
        max_tokens=max_tokens,
        priority=0,
        state=RequestState.RUNNING if in_prefill else RequestState.WAITING,
        computed_tokens=draw(st.integers(1, prompt_tokens)) if in_prefill else 0,
        output_tokens=0,
        unscheduled_s=arrival_s,
    )


@law
@given(view=quiet_views())
@of_each_policy()
def test_at_low_load_no_request_is_preempted_or_dropped(policy: AnyPolicy, view: StepView) -> None:
    """Law 4, for a single plan."""
    plan = policy(view)
    assert not plan.preempt
    assert not plan.drop


@law
@given(view=quiet_views())
@of_each_policy(not_pacing)
def test_at_low_load_every_policy_runs_the_same_requests_as_fcfs(
    policy: AnyPolicy, view: StepView
) -> None:
    """Law 4: at low load no request is held back."""
    assert policy(view).run == POLICIES["fcfs"](view).run

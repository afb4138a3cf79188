"""From keys to a plan: ties, drops, and the requests that run."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.policies.ranking import (
    order_by,
    plan_of,
    sorted_indices,
    without_weaker_memory_holders,
)
from serving.policies.urgency import drops, next_change_s, stay_limits_of
from serving.requests import Requests
from serving.view import StepView, plan_faults
from tests.strategies import law, step_views
from tests.unit.serving.serving_examples import (
    deadline,
    dropped_when_late,
    request,
    running,
    step,
)

FEW = st.sampled_from([0.0, -0.0, 1.0, 2.0, math.inf, -math.inf])
"""Few key values, so that ties are common; NaN has no order and is not among them."""


@st.composite
def crowds(draw: st.DrawFn) -> Requests:
    """Requests with equal arrivals, and ids that sort differently as text and as numbers."""
    ids = draw(st.lists(st.sampled_from([str(number) for number in range(60)]), unique=True))
    arrivals = st.sampled_from([0.0, 0.0, 1.0, 2.5])
    return Requests.of(request(each, arrival_s=draw(arrivals)) for each in ids)


@law
@given(crowds(), st.integers(1, 3), st.data())
def test_indices_are_sorted_as_by_sorted_with_ties_by_arrival_then_id(
    requests: Requests, num_keys: int, data: st.DataObject
) -> None:
    count = len(requests)
    keys = [
        data.draw(st.lists(FEW, min_size=count, max_size=count), label=f"key {number}")
        for number in range(num_keys)
    ]
    rows = list(requests)
    expected = sorted(
        range(count),
        key=lambda index: (
            *(key[index] for key in keys),
            rows[index].arrival_s,
            rows[index].request_id,
        ),
    )
    columns = [np.array(key, dtype=np.float64) for key in keys]
    assert sorted_indices(requests, *columns).tolist() == expected


def test_keys_may_be_flags_or_integers() -> None:
    requests = Requests.of(request(name) for name in "abcd")
    first = np.array([True, False, True, False])
    second = np.array([1, 9, 0, 2**60])
    assert sorted_indices(requests, ~first, second).tolist() == [2, 0, 1, 3]


def test_without_any_key_the_order_is_by_arrival_then_id() -> None:
    requests = Requests.of([request("b", arrival_s=2.0), request("c"), request("a")])
    assert sorted_indices(requests).tolist() == [2, 1, 0]


@st.composite
def views_in_any_order(draw: st.DrawFn) -> tuple[StepView, list[int]]:
    view = draw(step_views())
    return view, draw(st.permutations(range(len(view.requests))))


@law
@given(views_in_any_order(), st.data())
def test_a_plan_keeps_the_order_and_puts_dropped_requests_last(
    drawn: tuple[StepView, list[int]], data: st.DataObject
) -> None:
    view, order = drawn
    ids = view.requests.request_id.tolist()
    reasons = {ids[index]: reason for index, reason in drops(view, stay_limits_of(view))}
    kept = [ids[index] for index in order if ids[index] not in reasons]

    batch = data.draw(st.integers(0, 14), label="batch")
    first = plan_of(view, np.array(order, dtype=np.int64), batch)
    assert first.order == (*kept, *reasons)
    assert dict(first.drop) == reasons
    assert first.run == set(kept[:batch])
    assert (batch == 0 and bool(kept)) == bool(plan_faults(view, first))

    flags = np.array(data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))))
    flagged = plan_of(view, np.array(order, dtype=np.int64), flags.astype(bool))
    chosen = {ids[index] for index in order if flags[index]}
    assert flagged.run == chosen - reasons.keys()
    assert flagged.order == first.order


@law
@given(step_views())
def test_a_plan_expires_at_the_first_change_of_a_request_that_it_keeps(view: StepView) -> None:
    plan = plan_of(view, sorted_indices(view.requests), view.slots)
    dropped = dict(plan.drop)
    changes = zip(view.requests.request_id, next_change_s(view, stay_limits_of(view)), strict=True)
    times_s = [at_s for request_id, at_s in changes if request_id not in dropped]
    assert plan.until_s == min(times_s, default=math.inf)
    assert plan.until_s > view.now_s


@law
@given(step_views(), st.integers(0, 5))
def test_a_batch_of_0_is_the_number_of_slots(view: StepView, batch: int) -> None:
    plan = order_by(view, None, view.requests.prompt_tokens, batch=batch)
    kept = len(view.requests) - len(plan.drop)
    assert len(plan.run) == min(batch or view.slots, kept)
    assert set(plan.order[: len(plan.run)]) == plan.run


def test_a_dropped_request_is_last_in_the_order_and_has_a_reason() -> None:
    late = request("late", slo=dropped_when_late(1.0))
    view = step(late, request("kept", slo=deadline(9.0)), now_s=2.0)
    plan = plan_of(view, np.array([0, 1]), 1)
    assert plan.order == ("kept", "late")
    [(request_id, reason)] = plan.drop
    assert request_id == "late"
    assert "slo_on_late is drop" in reason


def runs(view: StepView, weaker: str) -> str:
    """Ids of the requests that still run, if all would run in the order of the view."""
    ids = view.requests.request_id
    run = np.ones(len(ids), dtype=bool)
    order = np.arange(len(ids))
    left = without_weaker_memory_holders(view, order, run, np.isin(ids, list(weaker)))
    assert run.all(), "the argument must not change"
    return "".join(ids[left])


def test_the_last_weaker_holders_give_up_the_missing_memory() -> None:
    """Each request holds or needs 10 tokens; "a" and "b" wait."""
    waiting = [request("a"), request("b")]
    view = step(*waiting, *(running(name) for name in "xyz"), kv_tokens=30, free_kv_tokens=0)
    assert runs(view, "xyz") == "abx"
    assert runs(view, "xy") == "abz"
    assert runs(view, "") == "abxyz"
    assert runs(view._replace(free_kv_tokens=5), "xyz") == "abx"
    assert runs(view._replace(free_kv_tokens=10), "xyz") == "abxy"
    assert runs(view._replace(free_kv_tokens=20), "xyz") == "abxyz"


def test_only_prompts_that_begin_take_memory_and_only_from_holders() -> None:
    prefill = running("a", prompt_tokens=900)
    view = step(prefill, request("x"), running("y"), kv_tokens=30, free_kv_tokens=0)
    assert runs(view, "xy") == "axy"
    waiting = step(request("a"), request("x"), running("y"), kv_tokens=30, free_kv_tokens=0)
    assert runs(waiting, "xy") == "ax", "a waiting request holds no memory"


def test_no_weaker_request_begins_behind_one_that_gave_up_its_memory() -> None:
    rows = [request("a"), running("x"), request("y"), running("z"), request("w")]
    view = step(*rows, kv_tokens=30, free_kv_tokens=0)
    assert runs(view, "xyzw") == "axy"
    assert runs(view, "xyz") == "aw", "w is not weaker, and needs memory as well"


def test_late_work_gives_up_memory_only_in_an_order_by_deadline_class() -> None:
    late = running("late", slo=deadline(1.0), computed_tokens=60, prompt_tokens=60)
    view = step(late, request("soon", slo=deadline(9.0)), now_s=2.0, free_kv_tokens=0)
    classes = np.array([1, 0])
    assert order_by(view, classes).run == {"soon"}
    assert order_by(view, None).run == {"late", "soon"}
    assert order_by(view._replace(free_kv_tokens=10), classes).run == {"late", "soon"}

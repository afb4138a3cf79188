"""From keys to a plan: ties, drops, and who runs."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from serving.policies.ranking import memory_holders_to_evict, order_by, plan_of, sorted_indices
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
"""So few that ties are common; no key is NaN, for which no order is right."""


@st.composite
def crowds(draw: st.DrawFn) -> Requests:
    """Requests of which many arrived at one moment, under ids whose order by text surprises."""
    ids = draw(st.lists(st.sampled_from([str(number) for number in range(60)]), unique=True))
    arrivals = st.sampled_from([0.0, 0.0, 1.0, 2.5])
    return Requests.of(request(each, arrival_s=draw(arrivals)) for each in ids)


@law
@given(crowds(), st.integers(1, 3), st.data())
def test_places_are_sorted_as_python_sorts_with_ties_by_arrival_then_id(
    requests: Requests, num_keys: int, data: st.DataObject
) -> None:
    count = len(requests)
    keys = [
        data.draw(st.lists(FEW, min_size=count, max_size=count), label=f"key {index}")
        for index in range(num_keys)
    ]
    rows = list(requests)
    expected = sorted(
        range(count),
        key=lambda place: (
            *(key[place] for key in keys),
            rows[place].arrival_s,
            rows[place].request_id,
        ),
    )
    columns = [np.array(key, dtype=np.float64) for key in keys]
    assert sorted_indices(requests, *columns).tolist() == expected


def test_flags_and_whole_numbers_are_keys_too() -> None:
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
def test_a_plan_ranks_as_given_but_for_those_it_drops(
    drawn: tuple[StepView, list[int]], data: st.DataObject
) -> None:
    view, order = drawn
    ids = view.requests.request_id.tolist()
    reasons = {ids[place]: reason for place, reason in drops(view, stay_limits_of(view))}
    kept = [ids[place] for place in order if ids[place] not in reasons]

    batch = data.draw(st.integers(0, 14), label="batch")
    first = plan_of(view, np.array(order, dtype=np.int64), batch)
    assert first.order == (*kept, *reasons)
    assert dict(first.drop) == reasons
    assert first.run == set(kept[:batch])
    assert (batch == 0 and bool(kept)) == bool(plan_faults(view, first))

    flags = np.array(data.draw(st.lists(st.booleans(), min_size=len(ids), max_size=len(ids))))
    flagged = plan_of(view, np.array(order, dtype=np.int64), flags.astype(bool))
    chosen = {ids[place] for place in order if flags[place]}
    assert flagged.run == chosen - reasons.keys()
    assert flagged.order == first.order


@law
@given(step_views())
def test_a_plan_ends_when_the_first_of_those_it_keeps_changes(view: StepView) -> None:
    plan = plan_of(view, sorted_indices(view.requests), view.slots)
    gone = dict(plan.drop)
    changes = zip(view.requests.request_id, next_change_s(view, stay_limits_of(view)), strict=True)
    moments = [at_s for request_id, at_s in changes if request_id not in gone]
    assert plan.until_s == min(moments, default=math.inf)
    assert plan.until_s > view.now_s


@law
@given(step_views(), st.integers(0, 5))
def test_a_batch_of_nought_is_as_many_as_there_are_slots(view: StepView, batch: int) -> None:
    plan = order_by(view, None, view.requests.prompt_tokens, batch=batch)
    kept = len(view.requests) - len(plan.drop)
    assert len(plan.run) == min(batch or view.slots, kept)
    assert set(plan.order[: len(plan.run)]) == plan.run


def test_who_is_dropped_comes_last_in_the_order_with_its_reason() -> None:
    late = request("late", slo=dropped_when_late(1.0))
    view = step(late, request("kept", slo=deadline(9.0)), now_s=2.0)
    plan = plan_of(view, np.array([0, 1]), 1)
    assert plan.order == ("kept", "late")
    [(request_id, reason)] = plan.drop
    assert request_id == "late"
    assert "slo_on_late is drop" in reason


def who_runs(view: StepView, weaker: str) -> str:
    """All would run, best first; those of the weaker may have to give way."""
    names = view.requests.request_id
    run = np.ones(len(names), dtype=bool)
    order = np.arange(len(names))
    left = memory_holders_to_evict(view, order, run, np.isin(names, list(weaker)))
    assert run.all(), "what was given is not changed"
    return "".join(names[left])


def test_the_last_of_the_weaker_give_what_others_who_wait_still_want() -> None:
    """Each holds 10 tokens or wants 10; "a" and "b" wait."""
    waiting = [request("a"), request("b")]
    view = step(*waiting, *(running(name) for name in "xyz"), kv_tokens=30, free_kv_tokens=0)
    assert who_runs(view, "xyz") == "abx"
    assert who_runs(view, "xy") == "abz"
    assert who_runs(view, "") == "abxyz"
    assert who_runs(view._replace(free_kv_tokens=5), "xyz") == "abx"
    assert who_runs(view._replace(free_kv_tokens=10), "xyz") == "abxy"
    assert who_runs(view._replace(free_kv_tokens=20), "xyz") == "abxyz"


def test_who_holds_nothing_and_who_reads_already_takes_no_memory() -> None:
    reading = running("a", prompt_tokens=900)
    view = step(reading, request("x"), running("y"), kv_tokens=30, free_kv_tokens=0)
    assert who_runs(view, "xy") == "axy"
    waiting = step(request("a"), request("x"), running("y"), kv_tokens=30, free_kv_tokens=0)
    assert who_runs(waiting, "xy") == "ax", "the one that waits has nothing to give"


def test_none_of_the_weaker_begins_behind_one_who_gave_its_memory() -> None:
    rows = [request("a"), running("x"), request("y"), running("z"), request("w")]
    view = step(*rows, kv_tokens=30, free_kv_tokens=0)
    assert who_runs(view, "xyzw") == "axy"
    assert who_runs(view, "xyz") == "aw", "it is no weaker one, and wants as much again"


def test_an_order_that_knows_late_work_holds_it_for_memory_and_one_that_does_not_does_not() -> None:
    late = running("late", slo=deadline(1.0), computed_tokens=60, prompt_tokens=60)
    view = step(late, request("soon", slo=deadline(9.0)), now_s=2.0, free_kv_tokens=0)
    stands = np.array([1, 0])
    assert order_by(view, stands).run == {"soon"}
    assert order_by(view, None).run == {"late", "soon"}
    assert order_by(view._replace(free_kv_tokens=10), stands).run == {"late", "soon"}

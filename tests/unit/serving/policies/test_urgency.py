"""When a request is due, when it is late, and when its SLO asks to drop it."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from serving.policies.urgency import (
    BEST_EFFORT_DEADLINE_S,
    DeadlineClass,
    deadline_class,
    drops,
    due_s,
    expiry_s,
    next_change_s,
    next_token_due_s,
    stay_limits_of,
)
from serving.requests import Floats, RequestView
from serving.slo import OnLate, SloKind
from serving.view import StepView
from tests.strategies import law, step_views
from tests.unit.serving.serving_examples import (
    compound,
    deadline,
    dropped_when_late,
    latency,
    request,
    running,
    step,
)


def dropped(view: StepView) -> tuple[tuple[int, str], ...]:
    """(index, reason) of each request that is dropped."""
    return drops(view, stay_limits_of(view))


def changes_s(view: StepView) -> Floats:
    return next_change_s(view, stay_limits_of(view))


def drop_reason(request: RequestView, now_s: float) -> str | None:
    """The reason to drop this request, alone in its view; None if it is not dropped."""
    return dict(dropped(step(request, now_s=now_s))).get(0)


def only(values: object) -> float:
    """The value of the single request in a view."""
    [value] = values.tolist()  # type: ignore[attr-defined]
    return float(value)


@law
@given(
    ttft_s=st.integers(1, 40),
    tbt_s=st.integers(1, 8),
    token_s=st.integers(1, 8),
    now_s=st.integers(0, 400),
    generated=st.integers(0, 49),
)
def test_a_stream_is_due_at_its_next_token_that_can_be_in_time(
    ttft_s: int, tbt_s: int, token_s: int, now_s: int, generated: int
) -> None:
    """Brute force over every remaining token: the first that can be in time, if any."""
    stream = running("a", slo=latency(ttft_s, tbt_s), max_tokens=50, output_tokens=generated)
    view = step(stream, now_s=float(now_s), token_s=float(token_s))
    in_time_s = [
        ttft_s + index * tbt_s
        for index in range(generated, 50)
        if now_s + (index - generated + 1) * token_s <= ttft_s + index * tbt_s
    ]
    assert only(due_s(view)) == (in_time_s[0] if in_time_s else math.inf)
    is_feasible = bool(in_time_s) and now_s < only(expiry_s(view))
    assert (only(deadline_class(view)) == DeadlineClass.FEASIBLE) == is_feasible


def test_a_stage_is_due_at_its_sub_deadline_and_after_that_at_the_final_deadline() -> None:
    stage = request("a", slo=compound(10.0, final_s=30.0))
    assert only(due_s(step(stage, now_s=9.0))) == 10.0
    assert only(due_s(step(stage, now_s=10.0))) == 30.0
    assert only(deadline_class(step(stage, now_s=29.0))) == DeadlineClass.FEASIBLE
    assert only(deadline_class(step(stage, now_s=30.0))) != DeadlineClass.FEASIBLE


def test_best_effort_work_has_a_default_deadline_and_is_never_late() -> None:
    assert only(due_s(step(request("a", arrival_s=7.0)))) == 7.0 + BEST_EFFORT_DEADLINE_S
    assert only(deadline_class(step(request("a"), now_s=1e9))) == DeadlineClass.FEASIBLE


@pytest.mark.parametrize(
    ("on_late", "expected"),
    [
        (OnLate.CONTINUE, DeadlineClass.LATE),
        (OnLate.BEST_EFFORT, DeadlineClass.LATE_BEST_EFFORT),
        (OnLate.DROP, DeadlineClass.LATE_BEST_EFFORT),
    ],
)
def test_on_late_decides_the_class_of_late_work(on_late: OnLate, expected: DeadlineClass) -> None:
    late = request("a", slo=deadline(1.0, on_late=on_late))
    assert only(deadline_class(step(late, now_s=1.0))) == expected


def test_a_request_is_dropped_exactly_when_it_has_waited_for_its_limit() -> None:
    patient = request("a", slo=deadline(100.0, waiting_s=5.0), unscheduled_s=2.0)
    assert drop_reason(patient, 6.999) is None
    assert "slo_waiting_s is 5" in (drop_reason(patient, 7.0) or "")


def test_a_request_that_holds_kv_cache_has_no_waiting_limit() -> None:
    assert drop_reason(running("a", slo=deadline(100.0, waiting_s=5.0)), 50.0) is None


def test_a_late_request_is_dropped_only_if_its_slo_asks_for_it() -> None:
    assert drop_reason(request("a", slo=dropped_when_late(5.0)), 4.9) is None
    assert "slo_on_late is drop" in (
        drop_reason(request("a", slo=dropped_when_late(5.0)), 5.0) or ""
    )
    assert drop_reason(request("a", slo=deadline(5.0)), 500.0) is None


def dropped_at(view: StepView, now_s: float) -> set[str]:
    """Ids of the requests that are dropped at another time of the same view."""
    ids = view.requests.request_id
    return {ids[index] for index, _ in dropped(view._replace(now_s=now_s))}


@law
@given(step_views())
def test_no_request_is_dropped_before_next_change_s(view: StepView) -> None:
    """So a plan is valid until then."""
    already = dropped_at(view, view.now_s)
    for each, change_s in zip(view.requests, changes_s(view).tolist(), strict=True):
        assert change_s > view.now_s
        if each.request_id not in already:
            last_s = math.nextafter(change_s, -math.inf) if change_s < math.inf else 1e300
            assert each.request_id not in dropped_at(view, last_s)


@law
@given(step_views())
def test_every_drop_is_at_a_time_given_by_next_change_s(view: StepView) -> None:
    """Advancing to one `next_change_s` after another finds every drop."""
    for each in view.requests:
        alone = step(each, now_s=view.now_s)
        while not dropped(alone):
            upcoming_s = only(changes_s(alone))
            if upcoming_s == math.inf:
                assert not dropped(alone._replace(now_s=1e300))
                break
            alone = alone._replace(now_s=upcoming_s)


@law
@given(step_views(hostile=False))
def test_expired_requests_are_never_feasible(view: StepView) -> None:
    assume(any(each.slo.kind is not SloKind.BEST_EFFORT for each in view.requests))
    expired = view.now_s >= expiry_s(view)
    assert not (deadline_class(view)[expired] == DeadlineClass.FEASIBLE).any()


# A second implementation from the definition of an SLO, for one request and without shared code.


def naive_expiry_s(request: RequestView) -> float:
    slo = request.slo
    if slo.kind is SloKind.LATENCY:
        return request.arrival_s + slo.ttft_s + max(request.max_tokens - 1, 0) * slo.tbt_s
    return request.final_s


def naive_patience_ends_s(request: RequestView) -> float:
    if request.slo.waiting_s is None or request.computed_tokens:
        return math.inf
    return request.unscheduled_s + request.slo.waiting_s


def naive_drop(request: RequestView, now_s: float) -> str | None:
    if now_s >= naive_patience_ends_s(request):
        return "slo_waiting_s"
    if request.slo.on_late is OnLate.DROP and now_s >= naive_expiry_s(request):
        return "slo_on_late"
    return None


def naive_due_s(request: RequestView, now_s: float) -> float:
    """For all kinds but latency, for which the test above tries every token."""
    if request.slo.kind is SloKind.BEST_EFFORT:
        return request.arrival_s + BEST_EFFORT_DEADLINE_S
    return request.deadline_s if request.deadline_s > now_s else request.final_s


@law
@given(step_views(hostile=False))
def test_each_column_equals_the_second_implementation(view: StepView) -> None:
    now_s, reasons = view.now_s, dict(dropped(view))
    due, expiry, changes = due_s(view), expiry_s(view), changes_s(view)
    token_due, classes = next_token_due_s(view), deadline_class(view)
    for index, each in enumerate(view.requests):
        assert expiry[index] == naive_expiry_s(each)
        reason = naive_drop(each, now_s)
        assert (reason or "") in reasons.get(index, "")
        assert (index in reasons) == (reason is not None)
        times_s = (naive_expiry_s(each), each.deadline_s, naive_patience_ends_s(each))
        assert changes[index] == min((at_s for at_s in times_s if at_s > now_s), default=math.inf)
        streams = each.slo.kind is SloKind.LATENCY
        assert due[index] == (token_due[index] if streams else naive_due_s(each, now_s))
        hopeless = streams and token_due[index] == math.inf
        late = now_s >= naive_expiry_s(each) or hopeless
        useful = each.slo.on_late is OnLate.CONTINUE
        expected = DeadlineClass.LATE if useful else DeadlineClass.LATE_BEST_EFFORT
        assert classes[index] == (expected if late else DeadlineClass.FEASIBLE)


@law
@given(step_views())
def test_drops_are_listed_by_arrival_then_id(view: StepView) -> None:
    rows = [view.requests[index] for index, _ in dropped(view)]
    assert rows == sorted(rows, key=lambda each: (each.arrival_s, each.request_id))


def test_an_empty_view_has_empty_columns() -> None:
    for column in (due_s, expiry_s, changes_s, next_token_due_s, deadline_class):
        assert column(step()).shape == (0,)
    assert dropped(step()) == ()

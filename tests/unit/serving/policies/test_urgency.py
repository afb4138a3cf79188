"""When a request is due, when it is late, and when its own promise gives it up."""

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
    """Who is given up, and why."""
    return drops(view, stay_limits_of(view))


def changes_s(view: StepView) -> Floats:
    """When time alone changes each request's standing."""
    return next_change_s(view, stay_limits_of(view))


def drop_reason(request: RequestView, now_s: float) -> str | None:
    """Why this request, alone in its view, is given up; None if it is not."""
    return dict(dropped(step(request, now_s=now_s))).get(0)


def only(values: object) -> float:
    """The value of the one request that a view holds."""
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
def test_a_stream_is_due_when_its_next_useful_token_is(
    ttft_s: int, tbt_s: int, token_s: int, now_s: int, generated: int
) -> None:
    """Brute force over every token still to come: the first that can be in time, if any."""
    stream = running("a", slo=latency(ttft_s, tbt_s), max_tokens=50, output_tokens=generated)
    view = step(stream, now_s=float(now_s), token_s=float(token_s))
    useful = [
        ttft_s + index * tbt_s
        for index in range(generated, 50)
        if now_s + (index - generated + 1) * token_s <= ttft_s + index * tbt_s
    ]
    assert only(due_s(view)) == (useful[0] if useful else math.inf)
    in_time = bool(useful) and now_s < only(expiry_s(view))
    assert (only(deadline_class(view)) == DeadlineClass.FEASIBLE) == in_time


def test_a_stage_is_due_at_its_own_deadline_and_then_at_its_runs() -> None:
    stage = request("a", slo=compound(10.0, final_s=30.0))
    assert only(due_s(step(stage, now_s=9.0))) == 10.0
    assert only(due_s(step(stage, now_s=10.0))) == 30.0
    assert only(deadline_class(step(stage, now_s=29.0))) == DeadlineClass.FEASIBLE
    assert only(deadline_class(step(stage, now_s=30.0))) != DeadlineClass.FEASIBLE


def test_best_effort_work_gets_a_default_deadline_so_that_it_never_starves() -> None:
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


def test_a_request_is_dropped_at_the_moment_its_patience_ends_and_not_before() -> None:
    patient = request("a", slo=deadline(100.0, waiting_s=5.0), unscheduled_s=2.0)
    assert drop_reason(patient, 6.999) is None
    assert "slo_waiting_s is 5" in (drop_reason(patient, 7.0) or "")


def test_patience_is_for_requests_without_a_place_in_the_cache() -> None:
    assert drop_reason(running("a", slo=deadline(100.0, waiting_s=5.0)), 50.0) is None


def test_only_who_asks_to_be_dropped_when_late_is() -> None:
    assert drop_reason(request("a", slo=dropped_when_late(5.0)), 4.9) is None
    assert "slo_on_late is drop" in (
        drop_reason(request("a", slo=dropped_when_late(5.0)), 5.0) or ""
    )
    assert drop_reason(request("a", slo=deadline(5.0)), 500.0) is None


def gone(view: StepView, now_s: float) -> set[str]:
    """Who is given up at another moment of the same view."""
    ids = view.requests.request_id
    return {ids[place] for place, _ in dropped(view._replace(now_s=now_s))}


@law
@given(step_views())
def test_a_standing_that_time_changes_is_announced(view: StepView) -> None:
    """A plan holds until `next_change_s`: nobody is dropped and no promise ends before it."""
    already = gone(view, view.now_s)
    for each, change_s in zip(view.requests, changes_s(view).tolist(), strict=True):
        assert change_s > view.now_s
        if each.request_id not in already:
            last_s = math.nextafter(change_s, -math.inf) if change_s < math.inf else 1e300
            assert each.request_id not in gone(view, last_s)


@law
@given(step_views())
def test_who_will_be_dropped_is_dropped_at_an_announced_moment(view: StepView) -> None:
    """Following the announced moments alone, every drop is met exactly when it falls due."""
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
def test_expired_is_never_feasible(view: StepView) -> None:
    assume(any(each.slo.kind is not SloKind.BEST_EFFORT for each in view.requests))
    expired = view.now_s >= expiry_s(view)
    assert not (deadline_class(view)[expired] == DeadlineClass.FEASIBLE).any()


# The same for one request, written down again from what a promise says: no arrays, no shared code.


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
    """Of all kinds but latency, for which the law above tries every token."""
    if request.slo.kind is SloKind.BEST_EFFORT:
        return request.arrival_s + BEST_EFFORT_DEADLINE_S
    return request.deadline_s if request.deadline_s > now_s else request.final_s


@law
@given(step_views(hostile=False))
def test_each_column_says_what_the_promise_of_its_request_does(view: StepView) -> None:
    now_s, reasons = view.now_s, dict(dropped(view))
    due, expiry, changes = due_s(view), expiry_s(view), changes_s(view)
    token_due, stands = next_token_due_s(view), deadline_class(view)
    for place, each in enumerate(view.requests):
        assert expiry[place] == naive_expiry_s(each)
        reason = naive_drop(each, now_s)
        assert (reason or "") in reasons.get(place, "")
        assert (place in reasons) == (reason is not None)
        moments = (naive_expiry_s(each), each.deadline_s, naive_patience_ends_s(each))
        assert changes[place] == min((at_s for at_s in moments if at_s > now_s), default=math.inf)
        streams = each.slo.kind is SloKind.LATENCY
        assert due[place] == (token_due[place] if streams else naive_due_s(each, now_s))
        hopeless = streams and token_due[place] == math.inf
        late = now_s >= naive_expiry_s(each) or hopeless
        useful = each.slo.on_late is OnLate.CONTINUE
        expected = DeadlineClass.LATE if useful else DeadlineClass.LATE_BEST_EFFORT
        assert stands[place] == (expected if late else DeadlineClass.FEASIBLE)


@law
@given(step_views())
def test_who_is_dropped_is_told_by_arrival_then_id(view: StepView) -> None:
    told = [view.requests[place] for place, _ in dropped(view)]
    assert told == sorted(told, key=lambda each: (each.arrival_s, each.request_id))


def test_a_view_of_nobody_has_empty_columns() -> None:
    for column in (due_s, expiry_s, changes_s, next_token_due_s, deadline_class):
        assert column(step()).shape == (0,)
    assert dropped(step()) == ()

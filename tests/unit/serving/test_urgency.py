"""When a request is due, when it is late, and when its own promise gives it up."""

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from serving.policies.urgency import (
    BEST_EFFORT_DEADLINE_S,
    Standing,
    drop_reason,
    due_s,
    expiry_s,
    next_change_s,
    standing,
)
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
    assert due_s(stream, view) == (useful[0] if useful else math.inf)
    in_time = bool(useful) and now_s < expiry_s(stream)
    assert (standing(stream, view) is Standing.FEASIBLE) == in_time


def test_a_stage_is_due_at_its_own_deadline_and_then_at_its_runs() -> None:
    stage = request("a", slo=compound(10.0, final_s=30.0))
    assert due_s(stage, step(now_s=9.0)) == 10.0
    assert due_s(stage, step(now_s=10.0)) == 30.0
    assert standing(stage, step(now_s=29.0)) is Standing.FEASIBLE
    assert standing(stage, step(now_s=30.0)) is not Standing.FEASIBLE


def test_best_effort_work_gets_a_default_deadline_so_that_it_never_starves() -> None:
    assert due_s(request("a", arrival_s=7.0), step()) == 7.0 + BEST_EFFORT_DEADLINE_S
    assert standing(request("a"), step(now_s=1e9)) is Standing.FEASIBLE


@pytest.mark.parametrize(
    ("on_late", "expected"),
    [
        (OnLate.CONTINUE, Standing.LATE),
        (OnLate.BEST_EFFORT, Standing.LATE_BEST_EFFORT),
        (OnLate.DROP, Standing.LATE_BEST_EFFORT),
    ],
)
def test_on_late_decides_the_class_of_late_work(on_late: OnLate, expected: Standing) -> None:
    late = request("a", slo=deadline(1.0, on_late=on_late))
    assert standing(late, step(now_s=1.0)) is expected


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


@law
@given(step_views())
def test_a_standing_that_time_changes_is_announced(view: StepView) -> None:
    """A plan holds until `next_change_s`: nobody is dropped and no promise ends before it."""
    for each in view.requests:
        change_s = next_change_s(each, view.now_s)
        assert change_s > view.now_s
        if drop_reason(each, view.now_s) is None and change_s < math.inf:
            before_s = math.nextafter(change_s, -math.inf)
            assert drop_reason(each, before_s) is None
        if drop_reason(each, view.now_s) is None and change_s == math.inf:
            assert drop_reason(each, view.now_s + 1e9) is None


@law
@given(step_views())
def test_who_will_be_dropped_is_dropped_at_an_announced_moment(view: StepView) -> None:
    """Following the announced moments alone, every drop is met exactly when it falls due."""
    for each in view.requests:
        now_s = view.now_s
        while drop_reason(each, now_s) is None:
            upcoming_s = next_change_s(each, now_s)
            if upcoming_s == math.inf:
                assert drop_reason(each, 1e300) is None
                break
            now_s = upcoming_s


@law
@given(step_views(hostile=False))
def test_expired_is_never_feasible(view: StepView) -> None:
    for each in view.requests:
        assume(each.slo.kind is not SloKind.BEST_EFFORT)
        if view.now_s >= expiry_s(each):
            assert standing(each, view) is not Standing.FEASIBLE

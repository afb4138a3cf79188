"""The snapshot that an engine makes of itself, against that of a router that sent the requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.requests import Requests, RequestState, RequestView
from serving.router.engine_snapshot import engine_snapshot
from serving.router.snapshot import OpenRequest, RoutedRequest, snapshot_of
from tests.unit.serving.router.router_examples import SPEED, Report, due_in, law, requests, stream
from tests.unit.serving.serving_examples import request as waiting
from tests.unit.serving.serving_examples import running

NOW_S = 50.0


def as_engine_knows_it(
    request: RoutedRequest, *, age_s: float, generated: int, number: int
) -> RequestView:
    """A request that waits, or one that decodes, at NOW_S."""
    has_begun = generated > 0
    return RequestView(
        request_id=f"r{number}",
        arrival_s=NOW_S - age_s,
        slo=request.slo,
        prompt_tokens=request.prompt_tokens,
        max_tokens=request.max_tokens,
        priority=0,
        state=RequestState.RUNNING if has_begun else RequestState.WAITING,
        computed_tokens=request.prompt_tokens + generated - 1 if has_begun else 0,
        output_tokens=generated,
        unscheduled_s=NOW_S - age_s,
    )


@law
@given(
    st.lists(
        st.tuples(requests(), st.floats(0.0, 40.0), st.one_of(st.just(0), st.integers(1, 400))),
        max_size=6,
    )
)
def test_an_engine_and_a_router_that_know_the_same_say_the_same(
    known: list[tuple[RoutedRequest, float, int]],
) -> None:
    rows = [
        as_engine_knows_it(each, age_s=age_s, generated=min(generated, each.max_tokens), number=i)
        for i, (each, age_s, generated) in enumerate(known)
    ]
    opened = [
        OpenRequest(each, age_s, min(generated, each.max_tokens), running=generated > 0)
        for each, age_s, generated in known
    ]
    by_engine = engine_snapshot("a", Report(), Requests.of(rows), NOW_S)
    by_router = snapshot_of("a", Report(), opened)
    assert by_engine.due_work_s == pytest.approx(by_router.due_work_s, abs=1e-6)
    assert by_engine.work_s == pytest.approx(by_router.work_s)
    assert by_engine.late_work_s == pytest.approx(by_router.late_work_s)
    rounded = {"due_work_s": (), "work_s": 0.0, "late_work_s": 0.0}
    assert by_engine._replace(**rounded) == by_router._replace(**rounded)


def test_computed_and_cached_prompt_tokens_are_no_work() -> None:
    rest = 100 * SPEED.decode_token_s
    slo = due_in(10.0, output_tokens=100)
    half = running("half", slo=slo, prompt_tokens=200, max_tokens=500, computed_tokens=150)
    cached = waiting("cached", slo=slo, prompt_tokens=200, max_tokens=500, cached_tokens=150)
    for each in (half, cached):
        snapshot = engine_snapshot("a", Report(), Requests.of([each]), 0.0)
        assert snapshot.work_s == pytest.approx(50 * SPEED.prefill_token_s + rest)


def test_a_request_that_lost_its_cache_computes_its_answer_again() -> None:
    slo = stream(5.0, 0.1, output_tokens=100)
    lost = waiting("lost", slo=slo, prompt_tokens=200, max_tokens=500, output_tokens=40)
    snapshot = engine_snapshot("a", Report(), Requests.of([lost]), 0.0)
    again_s = 239 * SPEED.prefill_token_s + 60 * SPEED.decode_token_s
    assert snapshot.work_s == pytest.approx(again_s)
    assert snapshot.num_waiting == 1


def test_a_length_without_a_prediction_is_that_of_the_users_recent_answers() -> None:
    lengths = (10.0, 20.0, 30.0, 40.0, 50.0, 60.0, 70.0)
    known = waiting("known", max_tokens=4000, default_length=lengths)
    unknown = waiting("unknown", max_tokens=4000)
    prefill_s = 10 * SPEED.prefill_token_s
    for each, tokens in ((known, 30), (unknown, 4000)):
        snapshot = engine_snapshot("a", Report(), Requests.of([each]), 0.0)
        assert snapshot.work_s == pytest.approx(prefill_s + tokens * SPEED.decode_token_s)


def test_an_engine_without_requests_has_no_work() -> None:
    snapshot = engine_snapshot("a", Report(), Requests.of([]), 0.0)
    assert snapshot == snapshot_of("a", Report(), [])

"""Snapshots: the work of a replica, and its change when a request is sent there."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.router.snapshot import (
    HORIZONS_S,
    Demand,
    OpenRequest,
    ReplicaSnapshot,
    RoutedRequest,
    demands,
    snapshot_of,
    with_request,
)
from serving.slo import Slo, SloKind
from tests.unit.serving.router.router_examples import (
    SPEED,
    Report,
    busy,
    due_in,
    exactly,
    fleets,
    law,
    request,
    requests,
    stream,
)


@law
@given(waiting=st.lists(requests(), max_size=4), new=requests())
def test_with_request_equals_a_new_snapshot_with_that_request(
    waiting: list[RoutedRequest], new: RoutedRequest
) -> None:
    updated, fresh = with_request(busy("a", *waiting), new), busy("a", *waiting, new)
    assert updated.due_work_s == pytest.approx(fresh.due_work_s)
    assert updated.work_s == pytest.approx(fresh.work_s)
    same = {"due_work_s": (), "work_s": 0.0}
    assert updated._replace(**same) == fresh._replace(**same)


@law
@given(fleet=fleets(), due_s=st.floats(0.01, 400.0), more_s=st.floats(0.0, 100.0))
def test_due_work_ascends_with_the_horizon(
    fleet: tuple[ReplicaSnapshot, ...], due_s: float, more_s: float
) -> None:
    for each in fleet:
        assert all(left <= right for left, right in pairwise((*each.due_work_s, each.work_s)))
        before = each.work_before_s(due_s)
        assert 0 <= before <= each.work_before_s(due_s + more_s) + 1e-9 <= each.work_s + 2e-9
        assert each.work_before_s(math.inf) == each.work_s


def test_work_is_due_by_the_deadline_of_its_request() -> None:
    snapshot = busy("a", request(due_in(4.0, output_tokens=450)))
    work_s = 100 * SPEED.prefill_token_s + 450 * SPEED.decode_token_s
    assert snapshot.work_before_s(2.0) == 0
    assert snapshot.work_before_s(4.0) == pytest.approx(work_s)
    assert dict(zip(HORIZONS_S, snapshot.due_work_s, strict=True))[2.0] == 0
    assert snapshot.work_s == pytest.approx(work_s)


def test_the_prefill_of_a_stream_is_due_before_its_decodes() -> None:
    first, rest = demands(request(stream(2.0, 0.1, output_tokens=51)), SPEED)
    assert first == Demand(2.0, pytest.approx(100 * SPEED.prefill_token_s))
    assert rest == Demand(pytest.approx(7.0), pytest.approx(51 * SPEED.decode_token_s))


def test_generated_and_cached_tokens_are_not_remaining_work() -> None:
    (left,) = demands(request(due_in(10.0, output_tokens=100)), SPEED, age_s=3.0, generated=60)
    assert left == Demand(7.0, pytest.approx(40 * SPEED.decode_token_s))
    (cached,) = demands(request(due_in(10.0)), SPEED, cached_tokens=100)
    assert cached.work_s == pytest.approx(100 * SPEED.decode_token_s)


def test_late_work_has_no_due_time() -> None:
    late = OpenRequest(request(due_in(3.0)), 3.0, 10, running=True)
    snapshot = snapshot_of("a", Report(), [late])
    assert set(snapshot.due_work_s) == {0.0}
    assert snapshot.work_s > 0


def test_a_request_past_its_stage_s_sub_deadline_is_due_by_the_final_deadline() -> None:
    stage = Slo(kind=SloKind.COMPOUND, deadline_s=3.0, final_s=20.0, length=exactly(10))
    (left,) = demands(request(stage), SPEED, age_s=5.0)
    assert left.due_s == pytest.approx(15.0)
    (late,) = demands(request(replace(stage, final_s=4.0)), SPEED, age_s=5.0)
    assert math.isinf(late.due_s)


def test_running_and_waiting_requests_are_counted_separately() -> None:
    both = [
        OpenRequest(request(), 1.0, 7, running=True),
        OpenRequest(request(prompt_tokens=50), 1.0, 0, running=False),
    ]
    snapshot = snapshot_of("a", Report(free_kv_blocks=900), both)
    assert (snapshot.num_running, snapshot.num_waiting, snapshot.num_requests) == (1, 1, 2)
    assert (snapshot.running_tokens, snapshot.waiting_tokens) == (107, 50)
    assert snapshot.free_kv_blocks == 900
    assert snapshot.final_kv_blocks == 13 + 10  # 200 and 150 tokens in blocks of 16


def test_without_a_sketch_max_tokens_is_the_length() -> None:
    assert request(Slo(), max_tokens=300).output_tokens() == 300
    assert request(due_in(9.0, output_tokens=500), max_tokens=300).output_tokens() == 300


@pytest.mark.parametrize(("prefix_tokens", "cached"), [(40, 40), (100, 99), (300, 99)])
def test_the_last_token_of_a_prompt_is_never_cached(prefix_tokens: int, cached: int) -> None:
    """Even if the prefix is as long as the prompt or longer."""
    routed = request(prefix="p", prefix_tokens=prefix_tokens)
    assert routed.prompt_tokens == 100
    assert busy("a", prefix_tokens={"p": 300}).cached_tokens(routed) == cached
    assert busy("a", prefix_tokens={}).cached_tokens(routed) == 0

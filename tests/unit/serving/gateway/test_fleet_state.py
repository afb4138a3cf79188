"""Which replica may answer a request, and what a router is told of it."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from serving.errors import InvalidEngineConfig
from serving.gateway.body import Body, parse_body
from serving.gateway.fleet_state import Choice, Fleet, Nobody, replica_url
from serving.gateway.replica_state import SUSPECT_S
from serving.gateway.token_estimates import Usage
from serving.router.table import RouterSpec
from tests.unit.serving.gateway.gateway_examples import EARLY, Recording, chat, due, report

A, B, C = "http://a:1", "http://b:1", "http://c:1"


def body(*arguments: str, **members: Any) -> Body:
    return parse_body(json.dumps(chat(*arguments, **members)).encode(), has_tags=True)


def fleet_of(router: Any = EARLY, **reports: Any) -> Fleet:
    """Two replicas that reported at 0 s."""
    fleet = Fleet([A, B], router)
    for replica in fleet.replicas:
        changes = reports.get(replica.url[7], {})
        replica.reported(report(**changes), asked_s=0.0, heard_s=0.0)
    return fleet


def chosen(fleet: Fleet, request: Body, **arguments: Any) -> Choice:
    choice = fleet.choose(request, **({"spent_s": 0.0, "now_s": 0.0} | arguments))
    assert isinstance(choice, Choice), choice
    return choice


def send(fleet: Fleet, request: Body, now_s: float = 0.0) -> Choice:
    choice = chosen(fleet, request, now_s=now_s)
    choice.replicas[0].sent(choice.request, now_s)
    return choice


@pytest.mark.parametrize("slower", [1.0, 1.02])
def test_eight_requests_at_once_are_spread_over_two_replicas(slower: float) -> None:
    speed = [0.001 * slower, 0.002 * slower, 0.004 * slower]
    fleet = fleet_of(b={"speed": speed})
    requests = [body(max_tokens=50, vllm_xargs=due(30.0)) for _ in range(8)]
    assert Counter(send(fleet, each).replicas[0].url for each in requests) == {A: 4, B: 4}


def test_replicas_without_reports_get_the_same_number_of_requests() -> None:
    fleet = Fleet([A, B], EARLY)
    for replica in fleet.replicas:
        replica.without_reports()
        replica.models = ("m",)
        replica.heard(0.0)
    sent = [send(fleet, body()) for _ in range(6)]
    assert Counter(each.replicas[0].url for each in sent) == {A: 3, B: 3}
    for each in [each for each in sent if each.replicas[0].url == A]:
        each.replicas[0].ended(next(iter(each.replicas[0]._sent)))
    assert [send(fleet, body()).replicas[0].url for _ in range(3)] == [A, A, A]


def test_a_request_that_the_report_may_not_contain_is_added_to_it() -> None:
    fleet = fleet_of(Recording())
    replica = fleet.replicas[0]
    early, late = (replica.sent(chosen(fleet, body()).request, now_s) for now_s in (1.0, 2.0))
    replica.reported(report(age_s=0.5, num_running=7), asked_s=2.4, heard_s=2.5)
    assert replica.snapshot(2.5).num_requests == 7 + 1
    assert replica.age_s(2.5) == pytest.approx(0.6)
    replica.ended(late)
    replica.reported(report(age_s=0.0, num_running=7), asked_s=2.6, heard_s=2.7)
    assert replica.snapshot(2.7).num_requests == 7
    replica.ended(early)


def test_a_silent_or_failing_replica_is_asked_only_if_no_other_is_there() -> None:
    fleet = fleet_of()
    a, b = fleet.replicas
    now_s = SUSPECT_S + 0.1
    b.heard(now_s)
    assert {chosen(fleet, body(), now_s=now_s).replicas[0] for _ in range(5)} == {b}
    a.heard(now_s)
    a.failed("connection refused")
    assert chosen(fleet, body(), now_s=now_s).replicas[0] is b
    assert chosen(fleet, body(), now_s=now_s, tried=[b]).replicas[0] is a
    assert fleet.choose(body(), spent_s=0.0, now_s=now_s, tried=[a, b]) is Nobody.NONE_LEFT


def test_a_draining_replica_gets_no_requests_until_it_starts_anew() -> None:
    fleet = fleet_of()
    a, b = fleet.replicas
    a.drain(True)
    assert {chosen(fleet, body()).replicas[0] for _ in range(5)} == {b}
    assert fleet.choose(body(), spent_s=0.0, now_s=0.0, tried=[b]) is Nobody.NONE_LEFT
    a.reported(report(boot_id="1"), asked_s=1.0, heard_s=1.0)
    assert a.is_draining
    a.reported(report(boot_id="2"), asked_s=1.0, heard_s=1.0)
    assert not a.is_draining
    b.reported(report(draining=True), asked_s=1.0, heard_s=1.0)
    assert chosen(fleet, body(), now_s=1.0).replicas[0] is a


def test_a_request_goes_to_a_replica_of_its_model() -> None:
    fleet = fleet_of(a={"models": ["small"]}, b={"models": ["large", "larger"]})
    assert {chosen(fleet, body(model="large")).replicas[0].url for _ in range(5)} == {B}
    assert {chosen(fleet, body(model="small")).replicas[0].url for _ in range(5)} == {A}
    assert fleet.choose(body(model="huge"), spent_s=0.0, now_s=0.0) is Nobody.UNKNOWN_MODEL
    assert fleet.models() == ("small", "large", "larger")
    assert chosen(fleet, body(model="")).replicas[0] in fleet.replicas


def test_a_model_that_nobody_lists_may_be_that_of_a_replica_which_never_answered() -> None:
    fleet = Fleet([A, B], EARLY)
    fleet.replicas[0].reported(report(), asked_s=0.0, heard_s=0.0)
    assert chosen(fleet, body(model="other")).replicas[0].url == B
    assert chosen(fleet, body()).replicas[0].url == A


def test_the_router_is_told_the_time_that_is_left() -> None:
    router = Recording()
    chosen(fleet_of(router), body(vllm_xargs=due(2.0)), spent_s=0.5)
    assert router.requests[0].slo.deadline_s == 1.5


def test_prompt_and_answer_tokens_are_learned_from_usage() -> None:
    router = Recording()
    fleet = fleet_of(router)
    prompt = body("x" * 1000)
    chosen(fleet, prompt)
    for _ in range(3):
        fleet.estimates.learn("m", characters=1000, usage=Usage(500, 40))
    chosen(fleet, prompt)
    chosen(fleet, body(max_tokens=7))
    first, learned, limited = router.requests
    assert first.prompt_tokens == pytest.approx(1030 / 4, rel=0.05)
    assert learned.prompt_tokens == pytest.approx(1030 / 2, rel=0.05)
    assert (learned.max_tokens, limited.max_tokens) == (40, 7)


def test_a_program_stays_where_its_prefix_is_cached_unless_the_slack_is_gone() -> None:
    fleet = fleet_of()
    a, b = fleet.replicas
    first = body("x" * 4000, max_tokens=9, vllm_xargs=due(9.0, slo_program="p"))
    b.prefixes.add(chosen(fleet, first).blocks)
    second = body("x" * 4000 + "y" * 400, max_tokens=9, vllm_xargs=due(4.0, slo_program="p"))
    other = body("x" * 4000, max_tokens=9, vllm_xargs=due(4.0, slo_program="q"))
    b.reported(report(work_s=2.5, due_work_s=[2.5] * 10), asked_s=0.0, heard_s=0.0)
    assert chosen(fleet, second).replicas[0] is b
    assert chosen(fleet, other).replicas[0] is a
    b.reported(report(work_s=5.0, due_work_s=[5.0] * 10), asked_s=0.0, heard_s=0.0)
    assert chosen(fleet, second).replicas[0] is a
    b.reported(report(boot_id="2"), asked_s=0.0, heard_s=0.0)
    assert not b.prefixes.shared_characters(chosen(fleet, second).blocks)


def test_slos_serve_tries_in_turn_and_serves_what_all_decline_as_best_effort() -> None:
    busy = {"work_s": 9.0, "due_work_s": [9.0] * 10}
    route = RouterSpec("slos_serve").build()
    fleet = fleet_of(route, a=busy)
    wanted = body(max_tokens=9, vllm_xargs=due(4.0))
    choices = [chosen(fleet, wanted) for _ in range(2)]
    assert [(each.replicas[0].url, each.is_demoted) for each in choices] == [(B, False)] * 2
    full = [chosen(fleet_of(route, a=busy, b=busy), wanted)]
    assert [each.is_demoted for each in full] == [True]


@pytest.mark.parametrize(
    ("urls", "named"),
    [
        (["localhost:8000"], "localhost:8000"),
        (["ftp://a"], "ftp://a"),
        (["http://a:99999"], "http://a:99999"),
        (["http://a/v2"], "http://a/v2"),
        (["http://a?x=1"], "http://a"),
        (["http://A:1/v1", "http://a:1/"], "twice"),
        (["http://me:secret@a"], "password"),
    ],
)
def test_the_error_of_an_invalid_address_names_it(urls: list[str], named: str) -> None:
    with pytest.raises(InvalidEngineConfig) as refused:
        Fleet(urls, EARLY)
    assert named in str(refused.value)
    assert "secret" not in str(refused.value)


def test_replicas_that_stay_keep_their_state() -> None:
    fleet = Fleet([A, B], EARLY)
    a, _ = fleet.replicas
    a.heard(1.0)
    fleet.set_replicas([C, A])
    assert [each.url for each in fleet.replicas] == [C, A]
    assert fleet.find(A) is a
    assert fleet.find(B) is None
    fleet.set_replicas([])
    assert fleet.choose(body(), spent_s=0.0, now_s=1.0) is Nobody.NONE_LEFT


def test_an_address_may_have_the_path_of_the_api() -> None:
    assert replica_url("http://a:1/v1/") == replica_url("http://A:1") == "http://a:1"

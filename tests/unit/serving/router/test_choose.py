"""Routers: laws that hold for all of them, and the criteria of each."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.errors import InvalidEngineConfig
from serving.router.choose import Router, as_best_effort
from serving.router.prediction import admits, predicted_end_s, priority_on
from serving.router.snapshot import (
    ReplicaSnapshot,
    RoutedRequest,
    Speed,
    snapshot_of,
    with_request,
)
from serving.router.table import ROUTERS, RouterSpec
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

VARIANTS = (
    *(RouterSpec(name) for name in ROUTERS),
    RouterSpec("least_loaded", {"by": "requests"}),
    RouterSpec("power_of_k", {"k": 0}),
    RouterSpec("power_of_k", {"k": 3, "late": False}),
    RouterSpec("power_of_k", {"k": 1, "stay": True}),
    RouterSpec("slos_serve", {"limit": 1}),
)
FAST = Speed(*(part / 3 for part in SPEED))


@pytest.fixture(params=VARIANTS, ids=lambda spec: f"{spec.name}{dict(spec.params)}")
def router(request: pytest.FixtureRequest) -> Router:
    spec: RouterSpec = request.param
    return spec.build()


def test_a_route_has_given_replicas_each_at_most_once(router: Router) -> None:
    @law
    @given(routed=requests(), fleet=fleets())
    def holds(routed: RoutedRequest, fleet: tuple[ReplicaSnapshot, ...]) -> None:
        names = router(routed, fleet).replicas
        assert names
        assert len(set(names)) == len(names)
        assert set(names) <= {each.replica for each in fleet}

    holds()


def test_a_route_does_not_depend_on_the_order_of_the_replicas(router: Router) -> None:
    @law
    @given(routed=requests(), fleet=fleets(), data=st.data())
    def holds(
        routed: RoutedRequest, fleet: tuple[ReplicaSnapshot, ...], data: st.DataObject
    ) -> None:
        shuffled = data.draw(st.permutations(fleet))
        assert router(routed, shuffled) == router(routed, fleet)

    holds()


def test_ties_between_equal_replicas_are_broken_by_id() -> None:
    fleet = [busy(name) for name in "cab"]
    for spec in (RouterSpec("least_loaded"), RouterSpec("power_of_k", {"k": 0})):
        assert spec.build()(request(), fleet).replicas[0] == "a"
    assert RouterSpec("power_of_k", {"k": 0}).build()(request(), fleet).replicas == ("a", "b", "c")


def test_ties_end_in_the_load_before_the_id() -> None:
    """The one answer that waits at "a" delays nothing: its pace determines both predicted ends."""
    fleet = [busy("a", request()), busy("b"), busy("c")]
    assert predicted_end_s(request(), fleet[0]) == predicted_end_s(request(), fleet[1])
    assert RouterSpec("power_of_k", {"k": 0}).build()(request(), fleet).replicas == ("b", "c", "a")
    same_work = [busy("a", request())._replace(num_waiting=2), busy("b", request())]
    for router in (RouterSpec("least_loaded"), RouterSpec("power_of_k", {"k": 0})):
        assert router.build()(request(), same_work).replicas[0] == "b"
    same_number = [busy("a", request()), busy("b", request(due_in(9.0, output_tokens=9)))]
    by_number = RouterSpec("least_loaded", {"by": "requests"}).build()
    assert by_number(request(), same_number).replicas == ("b",)


@pytest.mark.parametrize("slo", [due_in(30.0), stream(5.0, 0.2), Slo(length=exactly(100))])
@pytest.mark.parametrize("slower", [1.0, 1.03])
def test_simultaneous_requests_are_spread_over_replicas_of_about_equal_speed(
    slo: Slo, slower: float
) -> None:
    route = RouterSpec("power_of_k", {"k": 2, "late": False}).build()
    speed = Speed(*(slower * part for part in SPEED))
    fleet = {"a": busy("a"), "b": busy("b", speed=speed)}
    counts: Counter[str] = Counter()
    for number in range(8):
        sent = request(slo, request_id=str(number), number=number)
        [chosen] = route(sent, list(fleet.values())).replicas
        fleet[chosen] = with_request(fleet[chosen], sent)
        counts[chosen] += 1
    assert counts == {"a": 4, "b": 4}


def test_round_robin_takes_turns_regardless_of_load() -> None:
    fleet = [busy("a", *[request()] * 9), busy("b"), busy("c")]
    route = RouterSpec("round_robin").build()
    turns = [route(request(number=number), fleet).replicas for number in range(4)]
    assert turns == [("a",), ("b",), ("c",), ("a",)]


def test_the_least_loaded_has_the_least_work_or_the_fewest_requests() -> None:
    one_long = busy("a", request(due_in(9.0, output_tokens=2000)))
    two_short = busy("b", *[request(due_in(9.0, output_tokens=10))] * 2)
    assert RouterSpec("least_loaded").build()(request(), [one_long, two_short]).replicas == ("b",)
    by_number = RouterSpec("least_loaded", {"by": "requests"}).build()
    assert by_number(request(), [one_long, two_short]).replicas == ("a",)


def test_k_different_replicas_are_drawn_with_equal_probability() -> None:
    fleet = [busy(name) for name in "abcde"]
    route = RouterSpec("power_of_k", {"k": 2}).build()
    counts: Counter[str] = Counter()
    for number in range(2000):
        drawn = route(request(request_id=f"call-{number}"), fleet).replicas
        assert len(drawn) == 2
        counts.update(drawn)
    assert all(700 <= count <= 900 for count in counts.values())


def test_the_draw_depends_only_on_the_seed_and_the_request_s_id() -> None:
    fleet = [busy(name) for name in "abcdefgh"]
    routes = {
        seed: [
            RouterSpec("power_of_k", {"seed": seed}).build()(request(request_id=str(n)), fleet)
            for n in range(20)
        ]
        for seed in (0, 1)
    }
    again = [
        RouterSpec("power_of_k").build()(request(request_id=str(n), number=n), fleet)
        for n in range(20)
    ]
    assert again == routes[0] != routes[1]


def test_early_binding_takes_the_first_replica_of_late_binding() -> None:
    fleet = [busy("a", request(due_in(2.0, 900))), busy("b"), busy("c", speed=FAST)]
    late = RouterSpec("power_of_k", {"k": 0}).build()(request(), fleet)
    early = RouterSpec("power_of_k", {"k": 0, "late": False}).build()(request(), fleet)
    assert late.replicas == ("c", "b", "a")
    assert early.replicas == ("c",)


def test_a_faster_replica_has_the_higher_priority() -> None:
    for slo in (due_in(10.0), stream(5.0, 0.2), Slo()):
        slow, fast = busy("a"), busy("a", speed=FAST)
        assert priority_on(request(slo), fast) > priority_on(request(slo), slow) > 0


def test_work_that_is_due_later_does_not_precede_a_request() -> None:
    urgent = request(due_in(4.0, output_tokens=400))
    behind = busy("a", *[request(due_in(2.0, output_tokens=400))] * 3)
    before = busy("b", *[request(due_in(100.0, output_tokens=400))] * 9)
    assert predicted_end_s(urgent, behind) > 4 * 400 * SPEED.decode_token_s * 0.99
    assert predicted_end_s(urgent, before) == predicted_end_s(urgent, busy("c"))


def test_a_request_has_priority_0_on_a_replica_that_cannot_meet_its_slo() -> None:
    for slo in (due_in(0.49), stream(0.05, 0.2), stream(5.0, 0.003)):
        assert priority_on(request(slo), busy("a")) == 0
    route = RouterSpec("power_of_k", {"k": 0, "late": False}).build()
    assert route(request(due_in(0.4)), [busy("a"), busy("b", speed=FAST)]).replicas == ("b",)


def test_a_hopeless_request_goes_to_the_replica_where_it_ends_first() -> None:
    route = RouterSpec("power_of_k", {"k": 0, "late": False}).build()
    fleet = [busy("a", request(due_in(0.4, output_tokens=5000))), busy("b")]
    assert priority_on(request(due_in(0.45)), fleet[1]) == 0
    assert route(request(due_in(0.45)), fleet).replicas == ("b",)


def test_affinity_prefers_the_replica_that_caches_the_prefix() -> None:
    call = request(prompt_tokens=2000, prefix="p", prefix_tokens=1900)
    fleet = [busy("a"), busy("b", prefix_tokens={"p": 1900})]
    for affinity, chosen in ((1.0, "b"), (0.0, "a")):
        spec = RouterSpec("power_of_k", {"k": 0, "late": False, "affinity": affinity})
        assert spec.build()(call, fleet).replicas == (chosen,)
    other = call._replace(prefix="q")
    assert RouterSpec("power_of_k", {"k": 0}).build()(other, fleet).replicas[0] == "a"


def test_a_program_stays_where_its_prefix_is_cached_until_its_slack_is_gone() -> None:
    stay = RouterSpec("power_of_k", {"k": 1, "late": False, "stay": True}).build()
    call = request(due_in(4.0), prompt_tokens=500, prefix="p", prefix_tokens=400)
    waiting = request(due_in(3.0, output_tokens=1000))
    for number in range(20):  # whatever is drawn
        sent = call._replace(request_id=str(number))
        some = [busy("a"), busy("b", waiting, prefix_tokens={"p": 400})]
        assert stay(sent, some).replicas == ("b",)
        many = [busy("a"), busy("b", waiting, waiting, prefix_tokens={"p": 400})]
        drawn = RouterSpec("power_of_k", {"k": 1, "late": False}).build()(sent, many)
        assert priority_on(sent, many[1]) == 0
        assert stay(sent, many) == drawn


def test_a_program_without_an_slo_leaves_its_replica_where_it_would_end_later() -> None:
    stay = RouterSpec("power_of_k", {"k": 0, "late": False, "stay": True}).build()
    call = request(Slo(length=exactly(100)), prompt_tokens=500, prefix="p", prefix_tokens=400)
    assert stay(call, [busy("a"), busy("b", prefix_tokens={"p": 400})]).replicas == ("b",)
    waiting = [request(due_in(9.0, output_tokens=1000))] * 3
    loaded = busy("b", *waiting, prefix_tokens={"p": 400})
    assert stay(call, [busy("a"), loaded]).replicas == ("a",)


def test_slos_serve_takes_the_first_replica_in_turn_that_admits_the_request() -> None:
    full = [request(due_in(8.0, output_tokens=1000))] * 5
    fleet = [busy("a", *full), busy("b"), busy("c")]
    route = RouterSpec("slos_serve").build()
    assert route(request(number=0), fleet).replicas == ("b",)
    assert route(request(number=2), fleet).replicas == ("c",)


def test_a_request_that_all_replicas_decline_is_best_effort_on_the_first() -> None:
    full = [request(due_in(8.0, output_tokens=1000))] * 5
    fleet = [busy(name, *full) for name in "ab"]
    route = RouterSpec("slos_serve").build()(request(number=1), fleet)
    assert route.replicas == ("b",)
    assert route.best_effort
    limited = RouterSpec("slos_serve", {"limit": 1}).build()
    assert limited(request(number=0), [busy("a", *full), busy("b")]).best_effort


def test_a_best_effort_request_needs_no_admission() -> None:
    full = [request(due_in(8.0, output_tokens=1000))] * 9
    route = RouterSpec("slos_serve").build()(request(Slo()), [busy("a", *full)])
    assert (route.replicas, route.best_effort) == (("a",), False)


def test_admission_protects_the_slos_of_open_requests() -> None:
    """Of equal requests of 1.0 s each, due in 4 s, four fit; one that is due later still fits."""
    each = request(due_in(4.0, output_tokens=450))
    admitted: list[RoutedRequest] = []
    while admits(each, busy("a", *admitted), share=1.0):
        admitted.append(each)
    assert len(admitted) == 4
    assert not admits(request(due_in(3.9, output_tokens=140)), busy("a", *admitted))
    assert admits(request(due_in(30.0, output_tokens=450)), busy("a", *admitted))
    assert not admits(each, busy("a", *admitted[:2]), share=0.5)


def test_admission_requires_memory_and_speed() -> None:
    assert not admits(request(), busy("a", final_kv_blocks=990))
    assert admits(request(), busy("a", final_kv_blocks=980))
    assert not admits(request(due_in(0.49)), busy("a"))
    assert not admits(request(stream(5.0, 0.003)), busy("a"))
    assert not admits(request(stream(0.103, 0.1)), busy("a"))
    assert admits(request(stream(0.105, 0.1)), busy("a"))


def test_as_best_effort_keeps_length_user_and_weight() -> None:
    slo = replace(due_in(10.0), user="u", weight=2.0)
    best_effort = as_best_effort(slo)
    assert best_effort.kind is SloKind.BEST_EFFORT
    assert (best_effort.length, best_effort.user, best_effort.weight) == (slo.length, "u", 2.0)


@pytest.mark.parametrize(
    ("name", "params"),
    [
        ("random", {}),
        ("round_robin", {"k": 2}),
        ("least_loaded", {"by": "name"}),
        ("power_of_k", {"k": -1}),
        ("power_of_k", {"k": "two"}),
        ("power_of_k", {"affinity": 2.0}),
        ("slos_serve", {"share": 0.0}),
        ("slos_serve", {"limit": -1}),
    ],
)
def test_the_error_of_an_invalid_router_names_it(name: str, params: dict[str, float | str]) -> None:
    with pytest.raises(InvalidEngineConfig) as caught:
        RouterSpec(name, params)
    assert name in str(caught.value)


def test_admission_counts_the_prefill_and_the_answer_of_a_stream() -> None:
    """4 s of prefill and 4 s of decodes are due within 7.5 s, which is not a horizon."""
    slow = snapshot_of("a", Report(speed=Speed(0.001, 0.01, 0.004)), [])
    assert not admits(request(stream(4.5, 0.0075, output_tokens=400), prompt_tokens=4000), slow)
    assert admits(request(stream(4.5, 0.0095, output_tokens=400), prompt_tokens=4000), slow)

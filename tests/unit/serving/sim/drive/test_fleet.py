"""A fleet in one virtual time: when its engines step, and which copies of a call run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from serving.router.choose import Route
from serving.router.snapshot import ReplicaSnapshot, RoutedRequest
from serving.sim.drive.driver import VirtualTime
from serving.sim.drive.fleet import FleetReplay, run_fleet
from serving.sim.drive.replica import Replica, TypicalStep
from serving.sim.drive.stepped import Ended, Progress
from serving.sim.programs.programs import Call, Program, Stage
from serving.slo import Slo, SloKind
from serving.step_cost import Composition, StepCost

SECOND = StepCost(name="a second", source="made up", uncertainty="none", fixed_s=1.0)


class Engine:
    """First come, first served, one request at a time: one token per step.

    Args:
        patience: steps after which a waiting request is dropped; 0: never.
    """

    def __init__(self, clock: VirtualTime, *, patience: int = 0) -> None:
        self.clock = clock
        self.slots = 1
        self.kv_blocks = self.free_blocks = 100
        self.caches_prefixes = True
        self.preemptions = self.recomputed_tokens = 0
        self.patience = patience
        self.queue: dict[str, int] = {}  # request id -> tokens still to generate
        self.begun: set[str] = set()
        self.waited: dict[str, int] = {}
        self.events: list[tuple[str, str, float]] = []
        self.slos: dict[str, Slo] = {}
        self.limits: set[int] = set()
        self.planned: str | None = None
        self.in_step = False

    @property
    def has_work(self) -> bool:
        return bool(self.queue)

    def submit(
        self,
        request_id: str,
        *,
        prompt: list[int],
        output_tokens: int,
        slo: Slo,
        max_tokens: int,
        whole_tokens: int | None = None,
    ) -> None:
        assert not self.in_step, "an engine takes requests between its steps"
        assert request_id not in self.queue
        assert output_tokens <= max_tokens
        self.events.append(("submit", request_id, self.clock.now_s))
        self.queue[request_id] = output_tokens
        self.slos[request_id] = slo
        self.limits.add(max_tokens)

    def abort(self, request_id: str) -> None:
        assert not self.in_step
        self.events.append(("abort", request_id, self.clock.now_s))
        self.queue.pop(request_id, None)

    def has_begun(self, request_id: str) -> bool:
        return request_id in self.begun

    def plan_step(self) -> Composition:
        self.in_step = True
        self.planned = next(iter(self.queue), None)
        if self.planned is None:
            return Composition(0, 0, 0, ())
        self.begun.add(self.planned)
        return Composition(1, 1, 0, ())

    def finish_step(self) -> Progress:
        self.in_step = False
        if self.planned is None:
            return Progress((), ())
        self.queue[self.planned] -= 1
        has_ended = self.queue[self.planned] == 0
        ended = [Ended(self.planned, "stop", None)] if has_ended else []
        for request_id in self.queue:
            self.waited[request_id] = self.waited.get(request_id, 0) + 1
            if request_id not in self.begun and self.waited[request_id] == self.patience:
                ended.append(Ended(request_id, "abort", "waited"))
        for each in ended:
            del self.queue[each.request_id]
        return Progress((self.planned,), tuple(ended))


class Fleet:
    """Two engines, `a` and `b`, and a router with a table from program to replicas."""

    def __init__(
        self, routes: Mapping[str, Sequence[str]], *, b_step_s: float = 1.0, patience: int = 0
    ) -> None:
        self.routes = routes
        self.engines: dict[str, Engine] = {}
        self.replicas: list[Replica] = []
        self.snapshots: list[tuple[ReplicaSnapshot, ...]] = []
        self.limits: set[int] = set()
        for name, step_s in (("b", b_step_s), ("a", 1.0)):
            clock = VirtualTime()
            self.engines[name] = Engine(clock, patience=patience)
            cost = StepCost(name=name, source="made up", uncertainty="none", fixed_s=step_s)
            self.replicas.append(Replica(name, self.engines[name], clock, cost))

    def route(self, request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot]) -> Route:
        self.snapshots.append(tuple(snapshots))
        self.limits.add(request.max_tokens)
        names = tuple(self.routes[request.request_id.split("/")[0]])
        return Route(names, best_effort="!" in request.request_id)

    def run(self, *programs: Program, until_s: float = 1e6) -> FleetReplay:
        return run_fleet(programs, self.replicas, self.route, until_s=until_s)

    def times(self, result: FleetReplay) -> dict[str, list[tuple[float, ...]]]:
        return {
            each.program_id: [tuple(call.token_times_s) for call in each.each_call()]
            for each in result.replay.programs
        }


def single(name: str, arrival_s: float, output_tokens: int = 1, prompt_tokens: int = 1) -> Program:
    return Program(
        id=name,
        application="one",
        kind=SloKind.DEADLINE,
        arrival_s=arrival_s,
        stages=(Stage((Call(prompt_tokens, output_tokens),)),),
        deadline_s=100.0,
    )


def test_each_engine_steps_on_its_own_clock() -> None:
    fleet = Fleet({"x": "a", "y": "b"}, b_step_s=0.4)
    result = fleet.run(single("x", 0.0, 2), single("y", 0.5, 3))
    times = fleet.times(result)
    assert times["x"] == [(1.0, 2.0)]
    assert times["y"] == [pytest.approx((0.9, 1.3, 1.7))]
    assert result.calls == {"a": 1, "b": 1}
    assert result.replay.counters.steps == 5


def test_every_replica_and_the_router_see_the_same_max_tokens_for_all_lengths() -> None:
    fleet = Fleet({"x": "a", "y": "b"})
    fleet.run(single("x", 0.0, 2), single("y", 0.5, 4096))
    limits = {limit for engine in fleet.engines.values() for limit in engine.limits}
    assert limits == fleet.limits == {4096}


def test_a_request_that_arrives_during_a_step_reaches_the_engine_at_its_end() -> None:
    fleet = Fleet({"x": "a", "y": "a"})
    fleet.run(single("x", 0.0, 2), single("y", 0.5))
    assert fleet.engines["a"].events == [("submit", "x/0/0", 0.0), ("submit", "y/0/0", 1.0)]


def test_a_call_is_bound_to_the_first_replica_that_runs_a_copy() -> None:
    """Both are busy; b is free at 2.8 s, a at 3 s: b runs y, and a never does."""
    fleet = Fleet({"x": "a", "z": "b", "y": "ab"}, b_step_s=0.7)
    result = fleet.run(single("x", 0.0, 3), single("z", 0.0, 4), single("y", 0.5, 2))
    assert fleet.times(result)["y"] == [pytest.approx((3.5, 4.2))]
    assert result.calls == {"a": 1, "b": 2}
    assert result.withdrawn == 1
    assert ("abort", "y/0/0", 3.0) in fleet.engines["a"].events
    assert "y/0/0" not in fleet.engines["a"].begun


def test_if_two_replicas_could_run_a_call_at_once_the_first_by_name_runs_it() -> None:
    fleet = Fleet({"y": "ba"})
    result = fleet.run(single("y", 0.5))
    assert result.calls == {"a": 1, "b": 0}
    assert fleet.engines["b"].begun == set()


def test_a_copy_that_has_not_reached_its_engine_is_withdrawn_without_an_abort() -> None:
    """y arrives during a's step; b runs it before that step ends."""
    fleet = Fleet({"x": "a", "y": "ab"})
    result = fleet.run(single("x", 0.0, 1), single("y", 0.5))
    assert result.calls == {"a": 1, "b": 1}
    assert [event for event, *_ in fleet.engines["a"].events] == ["submit"]


def test_a_call_ends_only_when_its_last_copy_is_dropped() -> None:
    routes = {"x": "a", "z": "b", "y": "ab"}
    one_dropped = Fleet(routes, patience=2)
    result = one_dropped.run(single("x", 0.0, 9), single("z", 0.0, 2), single("y", 0.5))
    assert one_dropped.times(result)["y"] == [(3.0,)]
    assert result.calls == {"a": 1, "b": 2}
    both_dropped = Fleet(routes, patience=2)
    result = both_dropped.run(single("x", 0.0, 9), single("z", 0.0, 9), single("y", 0.5))
    assert [each.dropped for each in result.replay.programs] == [False, False, True]


def test_after_a_drop_the_program_s_other_calls_are_withdrawn_from_all_replicas() -> None:
    """One call of p waits at a behind x until it is dropped, while b runs the other one."""

    class Alternating(Fleet):
        def route(self, request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot]) -> Route:
            names = {"p/0/0": "a", "p/0/1": "b"}
            return Route((names.get(request.request_id, "a"),))

    fleet = Alternating({}, patience=3, b_step_s=0.7)
    program = Program(
        id="p",
        application="two",
        kind=SloKind.COMPOUND,
        arrival_s=0.5,
        stages=(Stage((Call(1, 1), Call(1, 50))),),
        deadline_s=100.0,
    )
    x, p = fleet.run(single("x", 0.0, 9), program).replay.programs
    assert x.finished
    assert p.dropped
    assert p.ended_s == 4.0
    assert fleet.engines["b"].events[-1] == ("abort", "p/0/1", pytest.approx(4.0))
    assert not fleet.engines["b"].queue


def test_stages_of_a_program_run_one_after_another_on_different_replicas() -> None:
    class Alternating(Fleet):
        def route(self, request: RoutedRequest, snapshots: Sequence[ReplicaSnapshot]) -> Route:
            return Route(("ab"[request.number % 2],))

    program = Program(
        id="p",
        application="two",
        kind=SloKind.COMPOUND,
        arrival_s=0.25,
        stages=(Stage((Call(1, 2),)), Stage((Call(1, 1),), tool_s=0.5)),
        deadline_s=100.0,
    )
    fleet = Alternating({})
    result = fleet.run(program)
    assert fleet.times(result)["p"] == [(1.25, 2.25), (3.75,)]
    assert result.calls == {"a": 1, "b": 1}


def test_a_request_that_is_routed_as_best_effort_has_no_slo_at_the_engine() -> None:
    fleet = Fleet({"x!": "a", "y": "b"})
    result = fleet.run(single("x!", 0.0), single("y", 0.0))
    assert result.demoted == 1
    assert fleet.engines["a"].slos["x!/0/0"].kind is SloKind.BEST_EFFORT
    assert fleet.engines["b"].slos["y/0/0"].kind is SloKind.DEADLINE


def test_a_snapshot_includes_requests_sent_since_the_last_report() -> None:
    fleet = Fleet(dict.fromkeys("xyz", "a"))
    fleet.run(single("x", 0.0, 5), single("y", 0.01, 5), single("z", 0.02, 5))
    counts = [(a.num_requests, b.num_requests) for a, b in fleet.snapshots]
    assert counts == [(0, 0), (1, 0), (2, 0)]
    works = [a.work_s for a, _ in fleet.snapshots]
    assert works[0] == 0 < works[1] < works[2]


def test_a_report_counts_running_and_waiting_requests_without_ended_ones() -> None:
    fleet = Fleet(dict.fromkeys("xyz", "a"))
    fleet.run(single("x", 0.0, 1), single("y", 0.0, 9), single("z", 2.5))
    a, b = fleet.snapshots[-1]
    assert (a.replica, b.replica) == ("a", "b")
    assert (a.num_running, a.num_waiting) == (1, 0)
    assert a.running_tokens == 1 + 1  # its prompt, and the one token generated by 2.5 s
    assert b.num_requests == 0


def test_the_latest_prefixes_are_assumed_cached_up_to_the_size_of_the_kv_cache() -> None:
    def shared(name: str, arrival_s: float, tokens: int) -> Program:
        stages = (Stage((Call(tokens, 1, tokens),)),)
        return Program(
            id=name,
            application="one",
            kind=SloKind.DEADLINE,
            arrival_s=arrival_s,
            stages=stages,
            deadline_s=100.0,
        )

    fleet = Fleet({"p": "a", "q": "a", "z": "b"})  # 100 blocks of 16 tokens
    fleet.run(shared("p", 0.0, 900), shared("q", 2.0, 800), shared("z", 4.0, 1))
    first, second, third = [a.prefix_tokens for a, _ in fleet.snapshots]
    assert (first, second, third) == ({}, {"p": 900}, {"q": 800})


def test_programs_that_have_not_started_by_the_end_are_reported_without_calls() -> None:
    fleet = Fleet({"x": "a", "y": "a", "z": "b"})
    result = fleet.run(single("x", 0.0, 5), single("y", 1.5), single("z", 9.0), until_s=1.9)
    assert fleet.times(result) == {"x": [(1.0, 2.0)], "y": [], "z": []}
    assert result.replay.ended_s == 2.0
    assert [len(each.calls) for each in result.replay.programs] == [1, 0, 0]


def test_a_replica_tells_its_speed_by_a_typical_step() -> None:
    cost = StepCost(
        name="made up",
        source="",
        uncertainty="",
        fixed_s=1.0,
        small_token_s=0.1,
        decode_context_s=0.01,
    )
    clock = VirtualTime()
    replica = Replica("a", Engine(clock), clock, cost, typical=TypicalStep(10, 20, 50))
    assert replica.speed.prefill_token_s == pytest.approx((1.0 + 50 * 0.1) / 50)
    assert replica.speed.decode_token_s == pytest.approx((1.0 + 10 * 0.1 + 200 * 0.01) / 10)

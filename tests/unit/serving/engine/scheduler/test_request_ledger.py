"""Ledger: the columns that it keeps up to date in place equal rows that are made anew each time."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from serving.engine.observers.default_length import DefaultLength
from serving.engine.observers.future_bias import FutureBias
from serving.engine.observers.length_bias import LengthBias
from serving.engine.observers.prefix_hit_rate import PrefixHitRate
from serving.engine.observers.service_counters import FAIR_MEMORY_S, MOST_CALLS
from serving.engine.scheduler.request_ledger import OUTPUT_WEIGHT, RequestLedger
from serving.engine.scheduler.step_output import composition_of
from serving.requests import COLUMNS, Requests, RequestState, RequestView, program_name
from serving.slo import BEST_EFFORT, Slo, to_tags
from tests.strategies import slos
from tests.unit.serving.serving_examples import compound, deadline


@dataclass
class EngineRequest:
    """A request as vLLM keeps it, as far as the ledger reads it."""

    request_id: str
    sampling_params: Any = None
    num_prompt_tokens: int = 10
    max_tokens: int = 100
    priority: int = 0
    num_computed_tokens: int = 0
    num_output_tokens: int = 0


def engine_request(request_id: str, slo: Slo = BEST_EFFORT, **changes: Any) -> EngineRequest:
    params = SimpleNamespace(extra_args=to_tags(slo) or None)
    return EngineRequest(request_id, params, **changes)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Followed:
    """What a naive ledger keeps of a request."""

    request: EngineRequest
    slo: Slo
    arrival_s: float
    unscheduled_s: float
    cached_tokens: int = 0


class Naive:
    """A list, sums by name, and every row read anew whenever it is asked for."""

    def __init__(self) -> None:
        self.followed: dict[str, Followed] = {}
        self.program_tokens: Counter[str] = Counter()
        self.user_tokens: defaultdict[str, float] = defaultdict(float)
        self.stages: dict[str, tuple[int, int]] = {}
        self.ended_tokens: Counter[str] = Counter()
        self.users: dict[str, int] = {}
        self.length_bias = LengthBias()
        self.future_bias = FutureBias()
        self.default_length = DefaultLength()
        self.prefix_hit_rate = PrefixHitRate()

    def admit(self, request: EngineRequest, slo: Slo, now_s: float, cached_tokens: int) -> None:
        users = {each.slo.user for each in self.followed.values()}
        if users and slo.user not in users:
            least = min(self.user_tokens[user] for user in users)
            self.user_tokens[slo.user] = max(self.user_tokens[slo.user], least)
        if slo.user not in self.users:
            self.users[slo.user] = user = len(self.users)
            self.length_bias.begin(user)
            self.future_bias.begin(user)
            self.default_length.begin(user)
            self.prefix_hit_rate.begin(user)
        program = program_name(request.request_id, slo)
        is_alone = program not in map(self.program, self.followed.values())
        each = Followed(request, slo, now_s, now_s, cached_tokens)
        self.followed[request.request_id] = each
        number = [*dict.fromkeys([*self.stages, program])].index(program)
        is_new = program not in self.stages
        self.future_bias.arrived(request.request_id, number, slo, is_new=is_new)
        stage, missing = self.stages.get(program, (-1, 0))
        if slo.stage > stage or (slo.stage < stage and is_alone):
            stage, missing = slo.stage, min(slo.stage_calls, MOST_CALLS)
        if slo.stage == stage:
            missing = max(missing - 1, 0)
        self.stages[program] = (stage, missing)

    def pass_time(self, seconds: float) -> None:
        for user in self.user_tokens:
            self.user_tokens[user] *= math.exp(-seconds / FAIR_MEMORY_S)

    def program(self, each: Followed) -> str:
        return program_name(each.request.request_id, each.slo)

    def end(self, request_id: str, *, is_whole: bool) -> None:
        each = self.followed.pop(request_id)
        request, user = each.request, self.users[each.slo.user]
        output_tokens = request.num_output_tokens
        self.future_bias.ended(request_id, user, output_tokens, is_whole=is_whole)
        if is_whole:
            tokens = request.num_prompt_tokens + output_tokens
            self.ended_tokens[self.program(each)] += tokens
            if request.num_output_tokens and each.slo.length is None:
                self.default_length.ended(user, request.num_output_tokens)
            elif request.num_output_tokens and each.slo.length is not None:
                self.length_bias.ended(user, each.slo.length, request.num_output_tokens)
            if each.slo.stage:
                prompt_tokens = request.num_prompt_tokens
                self.prefix_hit_rate.ended(user, prompt_tokens, each.cached_tokens)

    def learned(self, each: Followed) -> dict[str, Any]:
        user = np.array([self.users[each.slo.user]])
        return {
            "length_ratio": float(self.length_bias.ratios(user)[0]),
            "future_ratio": float(self.future_bias.ratios(user)[0]),
            "default_length": tuple(self.default_length.lengths(user)[0].tolist()),
            "prefix_hit_rate": float(self.prefix_hit_rate.shares(user)[0]),
        }

    def computed(self, tokens: dict[str, int], now_s: float) -> None:
        for request_id, count in tokens.items():
            each = self.followed[request_id]
            each.unscheduled_s = now_s
            self.program_tokens[self.program(each)] += count
            self.user_tokens[each.slo.user] += OUTPUT_WEIGHT if count == 1 else count

    def rows(self, running: set[str], paused: set[str]) -> list[RequestView]:
        rows = []
        for request_id, each in self.followed.items():
            state = RequestState.RUNNING if request_id in running else RequestState.WAITING
            rows.append(
                RequestView(
                    request_id=request_id,
                    arrival_s=each.arrival_s,
                    slo=each.slo,
                    prompt_tokens=each.request.num_prompt_tokens,
                    max_tokens=each.request.max_tokens,
                    priority=each.request.priority,
                    state=RequestState.PAUSED if request_id in paused else state,
                    computed_tokens=each.request.num_computed_tokens,
                    output_tokens=each.request.num_output_tokens,
                    unscheduled_s=each.unscheduled_s,
                    program_tokens=float(self.program_tokens[self.program(each)]),
                    user_tokens=float(self.user_tokens[each.slo.user]),
                    stage_missing=self.stages[self.program(each)][1],
                    ended_tokens=float(self.ended_tokens[self.program(each)]),
                    cached_tokens=each.cached_tokens,
                    **self.learned(each),
                )
            )
        return rows


SLOS = slos(programs=st.sampled_from(["", "one", "two"])).map(
    lambda slo: replace(slo, user=slo.user[:1])
)
PLACES = st.integers(0, 10**6)


class LedgerAndNaive(RuleBasedStateMachine):
    """The engine's events in any order. Views are taken now and then, not after each of them."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.ledger = RequestLedger(self.clock)
        self.naive = Naive()
        self.running: dict[str, EngineRequest] = {}
        self.paused: set[str] = set()
        self.count = 0

    @rule(
        slo=SLOS,
        prompt_tokens=st.integers(1, 4000),
        priority=st.integers(-9, 9),
        cached_tokens=st.integers(0, 4000),
    )
    def arrive(self, slo: Slo, prompt_tokens: int, priority: int, cached_tokens: int) -> None:
        self.count += 1
        request = engine_request(
            str(self.count), slo, num_prompt_tokens=prompt_tokens, priority=priority
        )
        cached_tokens = min(cached_tokens, prompt_tokens)
        error = self.ledger.add(request, cached_tokens=cached_tokens)  # type: ignore[arg-type]
        assert error is None
        self.naive.admit(request, slo, self.clock.now_s, cached_tokens)

    @rule(slo=SLOS, count=st.integers(2, 90))
    def arrive_in_crowds(self, slo: Slo, count: int) -> None:
        """More than the ledger has room for at first."""
        for _ in range(count):
            self.arrive(slo, 7, 0, 3)

    @rule(shares=st.lists(st.tuples(PLACES, st.integers(1, 600)), max_size=8))
    def compute(self, shares: list[tuple[int, int]]) -> None:
        """A step: whoever is computed has a slot from then on."""
        tokens = {}
        for place, count in shares:
            if (request := self._some(place)) and request.request_id not in self.paused:
                tokens[request.request_id] = count
                self.running[request.request_id] = request
        for request_id, count in tokens.items():
            request = self.running[request_id]
            request.num_computed_tokens += count
            request.num_output_tokens += request.num_computed_tokens >= request.num_prompt_tokens
        self.clock.now_s += 0.5
        self.naive.pass_time(0.5)
        self.ledger.computed(tokens)
        self.naive.computed(tokens, self.clock.now_s)

    @rule(place=PLACES, found=st.integers(0, 4000))
    def begin(self, place: int, found: int) -> None:
        """What was cached at its arrival may be gone, or more of it be there."""
        if request := self._some(place):
            self.ledger.started({request.request_id: found})
            found = min(found, request.num_prompt_tokens)
            self.naive.followed[request.request_id].cached_tokens = found

    @rule(place=PLACES)
    def evict(self, place: int) -> None:
        if (request := self._some(place)) and request.request_id in self.running:
            del self.running[request.request_id]
            self.paused.discard(request.request_id)
            request.num_computed_tokens = 0

    @rule(place=PLACES)
    def pause_or_go_on(self, place: int) -> None:
        if (request := self._some(place)) and request.request_id in self.running:
            self.paused ^= {request.request_id}

    @rule(place=PLACES, tokens=st.integers(1, 400))
    def go_on_with_more_input(self, place: int, tokens: int) -> None:
        if request := self._some(place):
            request.num_prompt_tokens += tokens
            request.max_tokens += 1
            self.ledger.extended(request.request_id)

    @rule(place=PLACES, is_whole=st.booleans())
    def end(self, place: int, is_whole: bool) -> None:
        if request := self._some(place):
            self.running.pop(request.request_id, None)
            self.paused.discard(request.request_id)
            self.ledger.forget(request.request_id, is_whole=is_whole)
            self.ledger.forget(request.request_id, is_whole=is_whole)  # vLLM may tell it twice
            self.naive.end(request.request_id, is_whole=is_whole)

    @rule()
    def look(self) -> None:
        shown = self.ledger.requests(self.running.values(), self.paused)  # type: ignore[arg-type]
        rows = self.naive.rows(set(self.running), self.paused)
        by_id = {row.request_id: row for row in rows}
        assert sorted(shown.request_id) == sorted(by_id)
        assert ((shown.prefix_hit_rate >= 0.0) & (shown.prefix_hit_rate <= 1.0)).all()
        expected = Requests.of(by_id[request_id] for request_id in shown.request_id)
        np.testing.assert_allclose(shown.user_tokens, expected.user_tokens, rtol=1e-9)
        assert [_without_its_user(row) for row in shown] == [
            _without_its_user(row) for row in expected
        ]
        for name in COLUMNS:
            if name in ("program", "user"):
                assert partition(getattr(shown, name)) == partition(getattr(expected, name))
            elif name != "user_tokens":
                np.testing.assert_array_equal(getattr(shown, name), getattr(expected, name))

    def teardown(self) -> None:
        self.look()

    def _some(self, place: int) -> EngineRequest | None:
        known = list(self.naive.followed.values())
        return known[place % len(known)].request if known else None


def _without_its_user(row: RequestView) -> RequestView:
    return row._replace(user_tokens=0.0)


def partition(numbers: Any) -> list[int]:
    """The same for columns whose values differ in name only."""
    values = numbers.tolist()
    return [values.index(value) for value in values]


def test_the_columns_equal_rows_that_are_read_anew() -> None:
    run_state_machine_as_test(
        LedgerAndNaive, settings=settings(deadline=None, max_examples=60, stateful_step_count=30)
    )


def test_who_got_and_lost_its_slot_between_two_views_is_read_once_more() -> None:
    """vLLM admits and evicts within the life of one plan, which sees neither."""
    ledger = RequestLedger(Clock())
    brief = engine_request("brief")
    ledger.add(brief)  # type: ignore[arg-type]
    ledger.requests([], ())
    brief.num_output_tokens = 3
    ledger.computed({"brief": 12})
    assert ledger.requests([], ())[0].output_tokens == 3


def test_what_arrived_shows_what_its_user_was_served_until_now() -> None:
    ledger = RequestLedger(Clock())
    ledger.add(engine_request("a", deadline(3.0, user="one")))  # type: ignore[arg-type]
    ledger.computed({"a": 12})
    assert ledger.arrivals()[0].user_tokens.tolist() == [12.0]
    ledger.add(engine_request("b", deadline(3.0, user="one")))  # type: ignore[arg-type]
    ledger.forget("a")
    ledger.computed({"b": 8})
    assert ledger.arrivals()[0].user_tokens.tolist() == [20.0, 20.0]


def test_what_the_prefix_cache_held_at_its_arrival_is_shown() -> None:
    ledger = RequestLedger(Clock())
    ledger.add(engine_request("a"), cached_tokens=8)  # type: ignore[arg-type]
    ledger.add(engine_request("b"))  # type: ignore[arg-type]
    assert ledger.requests([], ()).cached_tokens.tolist() == [8, 0]
    assert ledger.arrivals()[0].cached_tokens.tolist() == [8, 0]


def test_a_program_arrives_with_its_first_call_whatever_its_stage() -> None:
    """Its tools may have come before, and a resumed run begins where it stopped."""
    ledger = RequestLedger(Clock())
    ledger.add(engine_request("a", compound(9.0, program="p", stage=2)))  # type: ignore[arg-type]
    ledger.add(engine_request("b", compound(9.0, program="p", stage=3)))  # type: ignore[arg-type]
    assert ledger.arrivals()[0].request_id.tolist() == ["a"]


def test_malformed_tags_are_returned_and_the_request_followed_without_a_promise() -> None:
    ledger = RequestLedger(Clock())
    request = engine_request("a")
    request.sampling_params.extra_args = {"slo_weight": -1.0}
    error = ledger.add(request)  # type: ignore[arg-type]
    assert error is not None
    assert "slo_weight" in str(error)
    assert ledger.slo("a") == BEST_EFFORT
    assert len(ledger.arrivals()[0]) == 0  # it will never be computed
    ledger.forget("a")
    assert len(ledger.requests([], ())) == 0


def test_a_request_without_sampling_parameters_is_followed_too() -> None:
    """Those of pooling models."""
    ledger = RequestLedger(Clock())
    assert ledger.add(EngineRequest("a")) is None  # type: ignore[arg-type]
    assert ledger.slo("a") == BEST_EFFORT


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 10**40, -(10**40)])
def test_numbers_beyond_any_column_do_not_end_the_engine(number: int) -> None:
    ledger = RequestLedger(Clock())
    limit = abs(number)
    ledger.add(engine_request("a", priority=number, max_tokens=limit))  # type: ignore[arg-type]
    ledger.add(engine_request("b"))  # type: ignore[arg-type]
    shown = ledger.requests([], ())
    assert (shown[0].priority < shown[1].priority) == (number < 0)
    assert shown[0].max_tokens > 10**9


def test_the_clock_stamps_arrivals_so_that_promises_count_from_there() -> None:
    clock = Clock()
    ledger = RequestLedger(clock)
    clock.now_s = 5.0
    ledger.add(engine_request("a", deadline(3.0)))  # type: ignore[arg-type]
    clock.now_s = 6.0
    ledger.add(engine_request("b", compound(3.0, final_s=9.0)))  # type: ignore[arg-type]
    shown = ledger.requests([], ())
    assert shown.deadline_s.tolist() == [8.0, 9.0]
    assert shown.final_s.tolist() == [8.0, 15.0]
    assert math.isinf(shown.waiting_s[0])


def test_a_step_is_composed_of_decodes_and_of_the_chunks_of_prompts() -> None:
    """vLLM counts what it has scheduled as computed already."""
    requests = {
        "decode": EngineRequest("decode", num_computed_tokens=15),
        "later decode": EngineRequest("later decode", num_computed_tokens=31),
        "first chunk": EngineRequest("first chunk", num_prompt_tokens=99, num_computed_tokens=64),
        "last token of it": EngineRequest("last token of it", num_computed_tokens=10),
        "recomputes": EngineRequest("recomputes", num_computed_tokens=12),
        "drafted": EngineRequest("drafted", num_computed_tokens=25),
    }
    tokens = {"decode": 1, "later decode": 1, "first chunk": 64, "last token of it": 1}
    tokens["recomputes"] = 12  # its prompt, and two tokens that it said before
    tokens["drafted"] = 5
    output = SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=84,
        scheduled_spec_decode_tokens={"drafted": [-1] * 4},
    )
    made = composition_of(output, requests)  # type: ignore[arg-type]
    contexts = 14 + 30 + 20
    assert (made.new_tokens, made.num_decodes, made.decode_context_tokens) == (84, 3, contexts)
    assert made.prefill_chunks == ((64, 0), (1, 9), (12, 0))
    assert made.prompt_tokens == 77

"""RequestLedger: its columns, updated in place, equal rows that are built from scratch."""

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
from serving.engine.observers.service_counters import FAIR_MEMORY_S, MAX_STAGE_CALLS
from serving.engine.scheduler.request_ledger import OUTPUT_WEIGHT, RequestLedger
from serving.engine.scheduler.step_output import composition_of
from serving.length_sketch import LENGTH_LEVELS, LengthSketch
from serving.requests import COLUMNS, Requests, RequestState, RequestView, program_name
from serving.slo import BEST_EFFORT, Slo, SloKind, to_tags
from tests.strategies import examples, slos
from tests.unit.serving.serving_examples import compound, deadline


@dataclass
class EngineRequest:
    """The fields of vLLM's Request that the ledger reads."""

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
class NaiveRecord:
    """What the naive ledger keeps of a request."""

    request: EngineRequest
    slo: Slo
    arrival_s: float
    unscheduled_s: float
    cached_tokens: int = 0


class NaiveLedger:
    """The reference: sums by name, and every row built from scratch for each view."""

    def __init__(self) -> None:
        self.records: dict[str, NaiveRecord] = {}
        self.program_tokens: Counter[str] = Counter()
        self.user_tokens: defaultdict[str, float] = defaultdict(float)
        self.stages: dict[str, tuple[int, int]] = {}
        self.ended_tokens: Counter[str] = Counter()
        self.users: dict[str, int] = {}
        self.length_bias = LengthBias()
        self.future_bias = FutureBias()
        self.default_length = DefaultLength()
        self.prefix_hit_rate = PrefixHitRate()

    def add(self, request: EngineRequest, slo: Slo, now_s: float, cached_tokens: int) -> None:
        users = {each.slo.user for each in self.records.values()}
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
        is_alone = program not in map(self.program, self.records.values())
        record = NaiveRecord(request, slo, now_s, now_s, cached_tokens)
        self.records[request.request_id] = record
        number = [*dict.fromkeys([*self.stages, program])].index(program)
        is_new = program not in self.stages
        self.future_bias.arrived(request.request_id, number, slo, is_new=is_new)
        stage, missing = self.stages.get(program, (-1, 0))
        if slo.stage > stage or (slo.stage < stage and is_alone):
            stage, missing = slo.stage, min(slo.stage_calls, MAX_STAGE_CALLS)
        if slo.stage == stage:
            missing = max(missing - 1, 0)
        self.stages[program] = (stage, missing)

    def pass_time(self, seconds: float) -> None:
        for user in self.user_tokens:
            self.user_tokens[user] *= math.exp(-seconds / FAIR_MEMORY_S)

    def program(self, record: NaiveRecord) -> str:
        return program_name(record.request.request_id, record.slo)

    def end(self, request_id: str, *, is_complete: bool) -> None:
        record = self.records.pop(request_id)
        request, user = record.request, self.users[record.slo.user]
        output_tokens = request.num_output_tokens
        self.future_bias.ended(request_id, user, output_tokens, is_complete=is_complete)
        if is_complete:
            tokens = request.num_prompt_tokens + output_tokens
            self.ended_tokens[self.program(record)] += tokens
            if request.num_output_tokens and record.slo.length is None:
                self.default_length.ended(user, request.num_output_tokens)
            elif request.num_output_tokens and record.slo.length is not None:
                self.length_bias.ended(user, record.slo.length, request.num_output_tokens)
            if record.slo.stage:
                prompt_tokens = request.num_prompt_tokens
                self.prefix_hit_rate.ended(user, prompt_tokens, record.cached_tokens)

    def learned(self, record: NaiveRecord) -> dict[str, Any]:
        user = np.array([self.users[record.slo.user]])
        return {
            "length_ratio": float(self.length_bias.ratios(user)[0]),
            "future_ratio": float(self.future_bias.ratios(user)[0]),
            "default_length": tuple(self.default_length.lengths(user)[0].tolist()),
            "prefix_hit_rate": float(self.prefix_hit_rate.rates(user)[0]),
        }

    def computed(self, tokens: dict[str, int], now_s: float) -> None:
        for request_id, count in tokens.items():
            record = self.records[request_id]
            record.unscheduled_s = now_s
            self.program_tokens[self.program(record)] += count
            self.user_tokens[record.slo.user] += OUTPUT_WEIGHT if count == 1 else count

    def rows(self, running: set[str], paused: set[str]) -> list[RequestView]:
        rows = []
        for request_id, record in self.records.items():
            state = RequestState.RUNNING if request_id in running else RequestState.WAITING
            rows.append(
                RequestView(
                    request_id=request_id,
                    arrival_s=record.arrival_s,
                    slo=record.slo,
                    prompt_tokens=record.request.num_prompt_tokens,
                    max_tokens=record.request.max_tokens,
                    priority=record.request.priority,
                    state=RequestState.PAUSED if request_id in paused else state,
                    computed_tokens=record.request.num_computed_tokens,
                    output_tokens=record.request.num_output_tokens,
                    unscheduled_s=record.unscheduled_s,
                    program_tokens=float(self.program_tokens[self.program(record)]),
                    user_tokens=float(self.user_tokens[record.slo.user]),
                    stage_missing=self.stages[self.program(record)][1],
                    ended_tokens=float(self.ended_tokens[self.program(record)]),
                    cached_tokens=record.cached_tokens,
                    **self.learned(record),
                )
            )
        return rows


SLOS = slos(programs=st.sampled_from(["", "one", "two"])).map(
    lambda slo: replace(slo, user=slo.user[:1])
)
INDICES = st.integers(0, 10**6)  # of a request, modulo their number


class BothLedgers(RuleBasedStateMachine):
    """The same engine events, in any order, on both ledgers. Views are compared now and then."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = Clock()
        self.ledger = RequestLedger(self.clock)
        self.naive = NaiveLedger()
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
        self.naive.add(request, slo, self.clock.now_s, cached_tokens)

    @rule(slo=SLOS, count=st.integers(2, 90))
    def arrive_in_crowds(self, slo: Slo, count: int) -> None:
        """More requests than the ledger has rows at first."""
        for _ in range(count):
            self.arrive(slo, 7, 0, 3)

    @rule(shares=st.lists(st.tuples(INDICES, st.integers(1, 600)), max_size=8))
    def compute(self, shares: list[tuple[int, int]]) -> None:
        """A step; a request holds a slot from its first step on."""
        tokens = {}
        for index, count in shares:
            if (request := self._request(index)) and request.request_id not in self.paused:
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

    @rule(index=INDICES, cached_tokens=st.integers(0, 4000))
    def begin(self, index: int, cached_tokens: int) -> None:
        """The cache may hold fewer or more of its tokens than at its arrival."""
        if request := self._request(index):
            self.ledger.started({request.request_id: cached_tokens})
            cached_tokens = min(cached_tokens, request.num_prompt_tokens)
            self.naive.records[request.request_id].cached_tokens = cached_tokens

    @rule(index=INDICES)
    def evict(self, index: int) -> None:
        if (request := self._request(index)) and request.request_id in self.running:
            del self.running[request.request_id]
            self.paused.discard(request.request_id)
            request.num_computed_tokens = 0

    @rule(index=INDICES)
    def pause_or_resume(self, index: int) -> None:
        if (request := self._request(index)) and request.request_id in self.running:
            self.paused ^= {request.request_id}

    @rule(index=INDICES, tokens=st.integers(1, 400))
    def extend(self, index: int, tokens: int) -> None:
        if request := self._request(index):
            request.num_prompt_tokens += tokens
            request.max_tokens += 1
            self.ledger.extended(request.request_id)

    @rule(index=INDICES, is_complete=st.booleans())
    def end(self, index: int, is_complete: bool) -> None:
        if request := self._request(index):
            self.running.pop(request.request_id, None)
            self.paused.discard(request.request_id)
            self.ledger.forget(request.request_id, is_complete=is_complete)
            self.ledger.forget(
                request.request_id, is_complete=is_complete
            )  # vLLM may report it twice
            self.naive.end(request.request_id, is_complete=is_complete)

    @rule()
    def compare_views(self) -> None:
        shown = self.ledger.requests(self.running.values(), self.paused)  # type: ignore[arg-type]
        rows = self.naive.rows(set(self.running), self.paused)
        by_id = {row.request_id: row for row in rows}
        assert sorted(shown.request_id) == sorted(by_id)
        assert ((shown.prefix_hit_rate >= 0.0) & (shown.prefix_hit_rate <= 1.0)).all()
        expected = Requests.of(by_id[request_id] for request_id in shown.request_id)
        np.testing.assert_allclose(shown.user_tokens, expected.user_tokens, rtol=1e-9)
        assert [_without_user_tokens(row) for row in shown] == [
            _without_user_tokens(row) for row in expected
        ]
        for name in COLUMNS:
            if name in ("program", "user"):
                assert partition(getattr(shown, name)) == partition(getattr(expected, name))
            elif name != "user_tokens":
                np.testing.assert_array_equal(getattr(shown, name), getattr(expected, name))

    def teardown(self) -> None:
        self.compare_views()

    def _request(self, index: int) -> EngineRequest | None:
        records = list(self.naive.records.values())
        return records[index % len(records)].request if records else None


def _without_user_tokens(row: RequestView) -> RequestView:
    return row._replace(user_tokens=0.0)


def partition(numbers: Any) -> list[int]:
    """Equal for two columns of numbers that group the rows in the same way."""
    values = numbers.tolist()
    return [values.index(value) for value in values]


@pytest.mark.slow
def test_the_columns_equal_rows_that_are_built_from_scratch() -> None:
    run_state_machine_as_test(
        BothLedgers,
        settings=settings(deadline=None, max_examples=examples(60), stateful_step_count=30),
    )


def test_a_request_that_got_and_lost_its_slot_between_two_views_is_read_again() -> None:
    """vLLM may admit and preempt a request between two plans."""
    ledger = RequestLedger(Clock())
    request = engine_request("a")
    ledger.add(request)  # type: ignore[arg-type]
    ledger.requests([], ())
    request.num_output_tokens = 3
    ledger.computed({"a": 12})
    assert ledger.requests([], ())[0].output_tokens == 3


def test_an_arrival_has_the_present_service_of_its_user() -> None:
    ledger = RequestLedger(Clock())
    ledger.add(engine_request("a", deadline(3.0, user="one")))  # type: ignore[arg-type]
    ledger.computed({"a": 12})
    assert ledger.arrivals()[0].user_tokens.tolist() == [12.0]
    ledger.add(engine_request("b", deadline(3.0, user="one")))  # type: ignore[arg-type]
    ledger.forget("a")
    ledger.computed({"b": 8})
    assert ledger.arrivals()[0].user_tokens.tolist() == [20.0, 20.0]


def test_a_request_shows_the_prompt_tokens_that_were_cached_at_its_arrival() -> None:
    ledger = RequestLedger(Clock())
    ledger.add(engine_request("a"), cached_tokens=8)  # type: ignore[arg-type]
    ledger.add(engine_request("b"))  # type: ignore[arg-type]
    assert ledger.requests([], ()).cached_tokens.tolist() == [8, 0]
    assert ledger.arrivals()[0].cached_tokens.tolist() == [8, 0]


def test_a_program_arrives_with_its_first_call_whatever_its_stage() -> None:
    """Tools may precede the call, and a resumed run continues where it stopped."""
    ledger = RequestLedger(Clock())
    ledger.add(engine_request("a", compound(9.0, program="p", stage=2)))  # type: ignore[arg-type]
    ledger.add(engine_request("b", compound(9.0, program="p", stage=3)))  # type: ignore[arg-type]
    assert ledger.arrivals()[0].request_id.tolist() == ["a"]


def test_a_request_with_malformed_tags_is_kept_as_best_effort_and_the_error_returned() -> None:
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


def test_a_request_without_sampling_parameters_is_best_effort() -> None:
    """Such as those of pooling models."""
    ledger = RequestLedger(Clock())
    assert ledger.add(EngineRequest("a")) is None  # type: ignore[arg-type]
    assert ledger.slo("a") == BEST_EFFORT


@pytest.mark.parametrize("number", [2**63, 2**64 - 1, 10**40, -(10**40)])
def test_numbers_too_large_for_a_column_are_clamped(number: int) -> None:
    ledger = RequestLedger(Clock())
    limit = abs(number)
    ledger.add(engine_request("a", priority=number, max_tokens=limit))  # type: ignore[arg-type]
    ledger.add(engine_request("b"))  # type: ignore[arg-type]
    shown = ledger.requests([], ())
    assert (shown[0].priority < shown[1].priority) == (number < 0)
    assert shown[0].max_tokens > 10**9


def test_deadlines_count_from_the_arrival_on_the_engine_s_clock() -> None:
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


def test_the_composition_of_a_step_has_decodes_and_prompt_chunks() -> None:
    """vLLM counts scheduled tokens as computed."""
    requests = {
        "decode": EngineRequest("decode", num_computed_tokens=15),
        "later decode": EngineRequest("later decode", num_computed_tokens=31),
        "first chunk": EngineRequest("first chunk", num_prompt_tokens=99, num_computed_tokens=64),
        "last prompt token": EngineRequest("last prompt token", num_computed_tokens=10),
        "recomputes": EngineRequest("recomputes", num_computed_tokens=12),
        "drafted": EngineRequest("drafted", num_computed_tokens=25),
    }
    tokens = {"decode": 1, "later decode": 1, "first chunk": 64, "last prompt token": 1}
    tokens["recomputes"] = 12  # its prompt, and two output tokens
    tokens["drafted"] = 5
    output = SimpleNamespace(
        num_scheduled_tokens=tokens,
        total_num_scheduled_tokens=84,
        scheduled_spec_decode_tokens={"drafted": [-1] * 4},
    )
    step = composition_of(output, requests)  # type: ignore[arg-type]
    contexts = 14 + 30 + 20
    assert (step.new_tokens, step.num_decodes, step.decode_context_tokens) == (84, 3, contexts)
    assert step.prefill_chunks == ((64, 0), (1, 9), (12, 0))
    assert step.prompt_tokens == 77


def test_a_second_part_is_a_stream_of_its_own_with_a_length_that_is_not_corrected() -> None:
    clock = Clock()
    ledger = RequestLedger(clock)
    length, then = (LengthSketch((each,) * len(LENGTH_LEVELS)) for each in (80.0, 30.0))
    parts = Slo(
        kind=SloKind.COMPOUND,
        deadline_s=4.0,
        final_s=9.0,
        program="p",
        length=length,
        then_token=8,
        then_tbt_s=0.5,
        then_length=then,
    )
    for number in range(20):  # half as long as predicted
        ledger.add(engine_request(f"{number}", deadline(4.0, length=length), num_output_tokens=40))
        ledger.forget(f"{number}", is_complete=True)
    ledger.add(engine_request("a", parts))
    ledger.add(engine_request("b", compound(4.0, program="p")))
    before = ledger.requests([], ())
    assert before.program[0] == before.program[1]
    clock.now_s = 3.0
    ledger.begin_second_part("a", generated=40)
    after = ledger.requests([], ())
    assert after.program[0] != after.program[1]
    assert after.length_ratio[0] == pytest.approx(0.5)
    assert after.length[0] * after.length_ratio[0] == pytest.approx(
        [40 + 30 * after.length_ratio[0]] * len(LENGTH_LEVELS)
    )
    assert after.arrival_s[0] + after.ttft_s[0] + 40 * after.tbt_s[0] == pytest.approx(9.0)
    assert ledger.last_due_s("a", 43) == pytest.approx(9.0 + 2 * 0.5)
    ledger.forget("a", is_complete=True)
    assert len(ledger.requests([], ())) == 1

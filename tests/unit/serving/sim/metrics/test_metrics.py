"""Metrics: one report from many programs."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.goodput import GOODPUTS, ProgramOutcome, requests
from serving.sim.metrics.metrics import EngineCounters, Fairness, Percentiles, summarise
from serving.slo import SloKind
from tests.strategies import law
from tests.unit.serving.test_goodput import call, due, program, programs

WHOLE_RUN = (0.0, 10.0)
runs = st.lists(programs(), max_size=6)
shares = st.lists(st.floats(0, 1e300), min_size=1, max_size=8)


def test_a_report_sums_the_programs_goodput_per_second() -> None:
    stream = program((call(1.0, 2.0, 9.0),))  # two of three in time: not met
    in_time = due(4.0, (call(1.0, 4.0),))
    late = due(3.0, (call(1.0, 4.0),))
    report = summarise([stream, in_time, late], window_s=WHOLE_RUN)
    assert report.token_goodput == pytest.approx((2 + 12) / 10)
    assert report.request_goodput == pytest.approx(1 / 10)
    assert report.attainment == {"latency": 0.0, "deadline": 0.5, "compound": None}
    assert report.throughput_tokens_s == pytest.approx((13 + 12 + 12) / 10)
    assert report.output_tokens_s == pytest.approx(7 / 10)
    assert set(report.goodputs) == set(GOODPUTS)


def test_latencies_cover_all_calls_all_gaps_and_finished_programs() -> None:
    stream = program((call(4.0, 5.0, 8.0, submitted_s=1.0),))
    late = due(1.0, (call(9.0),))
    unfinished = due(1.0, (call(ended=False),))
    report = summarise([stream, late, unfinished], window_s=WHOLE_RUN)
    assert (report.ttft_s.count, report.ttft_s.p50) == (2, 6.0)
    assert (report.ttft_latency_s.count, report.ttft_latency_s.p50) == (1, 3.0)
    assert (report.tbt_s.count, report.tbt_s.p50) == (2, 2.0)
    assert (report.e2el_s.count, report.e2el_s.p50) == (2, 8.5)
    assert report.e2el_by_kind_s["deadline"].p99 == 9.0
    assert report.e2el_by_kind_s["compound"].p50 is None


@pytest.mark.parametrize(
    ("arrival_s", "counts"), [(9.9, False), (10.0, True), (19.9, True), (20.0, False)]
)
def test_a_program_counts_if_it_arrived_within_the_window(arrival_s: float, counts: bool) -> None:
    outcome = due(30.0, (call(29.0, submitted_s=arrival_s),), arrival_s=arrival_s)
    report = summarise([outcome], window_s=(10.0, 20.0))
    assert report.counts.arrived == report.counts.met == int(counts)
    assert report.token_goodput == pytest.approx(11 / 10 if counts else 0)
    assert report.throughput_tokens_s == 0  # all its tokens were delivered after the window


def test_uncounted_programs_are_part_of_the_throughput() -> None:
    warm_up = program((call(1.0, 11.0, 12.0),))
    report = summarise([warm_up], window_s=(10.0, 20.0))
    assert (report.output_tokens_s, report.throughput_tokens_s) == (0.2, 0.2)
    assert report.counts.arrived == 0


def test_events_after_the_observation_earn_nothing() -> None:
    unfinished = due(30.0, (call(1.0, 11.0),))
    stream = program((call(1.0, 11.0),), tbt_s=20.0)
    arrives_later = program((call(12.0, submitted_s=12.0),), arrival_s=12.0)
    run = [unfinished, stream, arrives_later]
    report = summarise(run, window_s=(0.0, 20.0), observed_until_s=10.0)
    assert report.goodputs["tokens"] == pytest.approx(1 / 20)
    assert (report.counts.arrived, report.counts.unfinished) == (2, 2)
    assert report.attainment["deadline"] == 0.0


def test_every_program_is_finished_dropped_or_unfinished() -> None:
    finished, dropped = program((call(1.0),)), program((call(dropped=True),))
    unfinished = program((call(ended=False),))
    counts = summarise([finished, dropped, unfinished], window_s=WHOLE_RUN).counts
    assert (counts.finished, counts.dropped, counts.unfinished, counts.arrived) == (1, 1, 1, 3)


def test_fairness_compares_users_whose_programs_have_an_slo() -> None:
    run = [
        due(5.0, (call(1.0),), user="ann"),
        due(5.0, (call(1.0),), user="ann"),
        due(0.5, (call(1.0),), user="bob"),
        program((call(1.0),), kind=SloKind.BEST_EFFORT, user="eve"),
    ]
    report = summarise(run, window_s=WHOLE_RUN, goodput=requests)
    assert report.user_goodput == {"ann": 0.2, "bob": 0.0}
    assert report.fairness == Fairness(min_to_mean=0.0, jain=0.5)


def test_an_empty_run_has_no_latencies_and_earns_nothing() -> None:
    report = summarise([], window_s=WHOLE_RUN)
    assert report.token_goodput == report.throughput_tokens_s == 0
    assert report.ttft_s == report.e2el_s == Percentiles(None, None, None, 0)
    assert set(report.attainment.values()) == {None}
    assert report.fairness == Fairness(None, None)


def test_the_document_contains_the_engine_s_counters() -> None:
    counters = EngineCounters(
        preemptions=3, recomputed_tokens=40, steps=7, schedule_ms_per_step=0.25
    )
    document = summarise([], window_s=WHOLE_RUN, counters=counters).to_document()
    assert document["preemptions"] == 3
    assert document["recomputed_tokens"] == 40
    assert document["steps"] == 7
    assert document["schedule_ms_per_step"] == 0.25


# Laws


@law
@given(runs)
def test_a_document_survives_strict_json(run: list[ProgramOutcome]) -> None:
    document = summarise(run, window_s=(10.0, 40.0)).to_document()
    assert json.loads(json.dumps(document, allow_nan=False)) == document
    keys = {"token_goodput", "request_goodput", "attainment", "ttft_s", "tbt_s", "e2el_s"}
    keys |= {"throughput_tokens_s", "preemptions", "recomputed_tokens", "schedule_ms_per_step"}
    assert keys <= document.keys()
    assert set(document["attainment"]) == {"latency", "deadline", "compound"}
    assert {"p50", "p95", "p99"} <= document["tbt_s"].keys()


@law
@given(runs, st.randoms(use_true_random=False))
def test_the_order_of_programs_does_not_matter(
    run: list[ProgramOutcome], shuffler: random.Random
) -> None:
    shuffled = shuffler.sample(run, len(run))
    assert summarise(shuffled, window_s=WHOLE_RUN) == summarise(run, window_s=WHOLE_RUN)


@law
@given(runs, st.floats(0, 40), st.floats(1, 60))
def test_goodput_within_the_window_never_exceeds_throughput(
    run: list[ProgramOutcome], from_s: float, length_s: float
) -> None:
    to_s = from_s + length_s
    report = summarise(run, window_s=(from_s, to_s), observed_until_s=to_s)
    assert report.token_goodput <= report.throughput_tokens_s + 1e-6
    assert report.output_tokens_s <= report.throughput_tokens_s


@law
@given(runs)
def test_the_users_goodputs_sum_up_to_the_total(run: list[ProgramOutcome]) -> None:
    report = summarise(run, window_s=(0.0, 100.0))
    assert math.fsum(report.user_goodput.values()) == pytest.approx(report.token_goodput)


@law
@given(st.floats(0, 1e6), st.integers(1, 50))
def test_every_percentile_of_constant_data_is_that_constant(value: float, count: int) -> None:
    assert Percentiles.of([value] * count) == Percentiles(value, value, value, count)


@law
@given(st.lists(st.floats(0, 1e6), min_size=1))
def test_percentiles_ascend_within_the_data(values: list[float]) -> None:
    percentiles = Percentiles.of(values)
    assert percentiles.p50 is not None
    assert percentiles.p95 is not None
    assert percentiles.p99 is not None
    ordered = [min(values), percentiles.p50, percentiles.p95, percentiles.p99, max(values)]
    assert all(low <= high + 1e-6 for low, high in pairwise(ordered))


@law
@given(shares)
def test_jain_is_between_1_n_and_1_and_is_1_for_equal_shares(values: list[float]) -> None:
    fairness = Fairness.of(values)
    if not any(values):
        assert fairness == Fairness(None, None)
        return
    assert fairness.jain is not None
    assert fairness.min_to_mean is not None
    assert 1 / len(values) - 1e-9 <= fairness.jain <= 1 + 1e-9
    assert 0 <= fairness.min_to_mean <= 1 + 1e-9
    assert Fairness.of([values[0] or 1.0] * len(values)).jain == pytest.approx(1)

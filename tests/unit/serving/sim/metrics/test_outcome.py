"""Outcomes: distributions that agree with the report and survive storage."""

from __future__ import annotations

import json

import numpy as np

from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.metrics.metrics import summarise
from serving.sim.metrics.outcome import CURVES, LEVELS, Outcome, outcome_of, percentiles
from serving.sim.workloads.load_generator import Source, generate_load
from serving.step_cost import STEP_COSTS
from tests.unit.serving.sim.bench_examples import FifoEngine


def make_outcome() -> Outcome:
    load = generate_load(
        Source.generator("mixed"), rate_per_s=1.0, seed=0, warmup_s=5.0, window_s=20.0
    )
    clock = VirtualTime()
    replayed = replay(
        load.programs,
        FifoEngine(32),
        clock,
        STEP_COSTS["a100-llama3-8b"],
        until_s=load.decided_s,
    )
    report = summarise(replayed.programs, window_s=load.window_s, observed_until_s=load.decided_s)
    return outcome_of(report, replayed.programs, observed_until_s=load.decided_s)


def test_curves_agree_with_the_percentiles_of_the_report() -> None:
    outcome = make_outcome()
    for name in CURVES:
        for level in (50, 95, 99):
            assert outcome.curves[name][level] == outcome.report[name][f"p{level}"]
        assert list(outcome.curves[name]) == sorted(outcome.curves[name])


def test_an_outcome_is_exactly_the_same_after_storage() -> None:
    outcome = make_outcome()
    stored = Outcome.from_document(json.loads(json.dumps(outcome.to_document())))
    assert stored.curves == outcome.curves
    assert json.loads(json.dumps(outcome.report)) == stored.report
    assert stored.token_goodput == outcome.token_goodput > 0


def test_percentiles_range_from_the_minimum_to_the_maximum() -> None:
    values = np.random.default_rng(0).random(500).tolist()
    curve = percentiles(values)
    assert (len(curve), curve[0], curve[-1]) == (len(LEVELS), min(values), max(values))
    assert percentiles([3.0]) == (3.0,) * 101
    assert percentiles([]) == ()

from __future__ import annotations

import json

import numpy as np

from serving.sim.drive.driver import VirtualTime, replay
from serving.sim.metrics.metrics import summarise
from serving.sim.metrics.outcome import CURVES, LEVELS, Outcome, outcome_of, percentiles
from serving.sim.workloads.load_generator import Source, generate_load
from serving.step_cost import STEP_COSTS
from tests.unit.serving.sim.bench_examples import FifoEngine


def an_outcome() -> Outcome:
    offered = generate_load(
        Source.generator("mixed"), rate_per_s=1.0, seed=0, warmup_s=5.0, window_s=20.0
    )
    clock = VirtualTime()
    replayed = replay(
        offered.programs,
        FifoEngine(32),
        clock,
        STEP_COSTS["a100-llama3-8b"],
        until_s=offered.decided_s,
    )
    report = summarise(
        replayed.programs, window_s=offered.window_s, observed_until_s=offered.decided_s
    )
    return outcome_of(report, replayed.programs, observed_until_s=offered.decided_s)


def test_curves_agree_with_the_report() -> None:
    outcome = an_outcome()
    for name in CURVES:
        for level in (50, 95, 99):
            assert outcome.curves[name][level] == outcome.report[name][f"p{level}"]
        assert list(outcome.curves[name]) == sorted(outcome.curves[name])


def test_an_outcome_survives_being_stored_to_the_last_bit() -> None:
    outcome = an_outcome()
    kept = Outcome.from_document(json.loads(json.dumps(outcome.to_document())))
    assert kept.curves == outcome.curves
    assert json.loads(json.dumps(outcome.report)) == kept.report
    assert kept.token_goodput == outcome.token_goodput > 0


def test_percentiles_run_from_the_least_to_the_most() -> None:
    values = np.random.default_rng(0).random(500).tolist()
    found = percentiles(values)
    assert (len(found), found[0], found[-1]) == (len(LEVELS), min(values), max(values))
    assert percentiles([3.0]) == (3.0,) * 101
    assert percentiles([]) == ()

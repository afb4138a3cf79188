"""The steady benchmark: ratios to bound and estimate, and its table; the runs are fake."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks import steady
from benchmarks.comparing import Session
from benchmarks.one_pace import best_of_each
from serving.sim.bound.least_work import LeastWork
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.workloads.load_generator import Source
from tests.unit.serving.sim.bench_examples import CAPACITY, InProcessRunner, fake_result

ARGUMENTS = ["--loads", "1", "--window-s", "60", "--seeds", "1"]


@pytest.fixture(autouse=True)
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def fake_session(jobs: int) -> Iterator[Session]:
        yield Session(InProcessRunner(jobs=jobs, work=fake_result))

    monkeypatch.setattr(steady, "session", fake_session)


def test_a_policy_is_compared_with_the_bound_and_the_best_pace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert steady.main([*ARGUMENTS, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"] is True
    calm, bound, one_pace = document["rows"]
    assert [calm["name"], bound["name"], one_pace["name"]] == ["calm", "upper bound", "one pace"]
    for row in (bound, one_pace):
        for index, unit in enumerate(("tokens", "requests")):
            assert row["shares"][index] == calm["goodputs"][unit] / row["goodputs"][unit]


def test_the_best_pace_is_computed_on_the_programs_of_the_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert steady.main([*ARGUMENTS, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)["rows"][-1]
    config = ExperimentConfig(source=Source.generator("mixed"), window_s=60.0)
    load = config.generate_load(rate_per_s=CAPACITY, seed=0)
    least_work = LeastWork(cost=config.machine.step_cost, step_tokens=2048, slots=256)
    tokens, requests = best_of_each(load.programs, least_work, window_s=load.window_s)
    assert row["goodputs"] == {"tokens": tokens.goodput, "requests": requests.goodput}
    assert row["step_ms"] == [1e3 * tokens.step_s, 1e3 * requests.step_s]


def test_the_table_says_that_it_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert steady.main(ARGUMENTS) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("simulated")
    assert [line.split()[1] for line in lines[2:]] == ["calm", "upper", "one"]


def test_an_unknown_policy_is_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    assert steady.main(["--policy", "fastest"]) == 2
    assert "fastest" in capsys.readouterr().err

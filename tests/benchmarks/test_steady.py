"""What is held against what, and how it is printed; the runs are made up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from benchmarks import steady
from benchmarks.comparing import Session
from benchmarks.one_pace import best_of_each
from serving.sim.bound.least_work import Prices
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.workloads.load_generator import Source
from tests.unit.serving.sim.bench_examples import CAPACITY, HereRunner, made_up

GIVEN = ["--loads", "1", "--window-s", "60", "--seeds", "1"]


@pytest.fixture(autouse=True)
def made_up_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def made_up_session(jobs: int) -> Iterator[Session]:
        yield Session(HereRunner(jobs=jobs, work=made_up))

    monkeypatch.setattr(steady, "session", made_up_session)


def test_a_policy_is_held_against_the_bound_and_the_best_pace(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert steady.main([*GIVEN, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"] is True
    calm, bound, one_pace = document["rows"]
    assert [calm["name"], bound["name"], one_pace["name"]] == ["calm", "upper bound", "one pace"]
    for row in (bound, one_pace):
        for at, unit in enumerate(("tokens", "requests")):
            assert row["shares"][at] == calm["goodputs"][unit] / row["goodputs"][unit]


def test_the_best_pace_is_of_the_programs_that_were_run(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert steady.main([*GIVEN, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["rows"][-1]
    setting = ExperimentConfig(source=Source.generator("mixed"), window_s=60.0)
    offered = setting.generated_load(rate_per_s=CAPACITY, seed=0)
    prices = Prices(cost=setting.machine.step_cost, step_tokens=2048, slots=256)
    tokens, requests = best_of_each(offered.programs, prices, window_s=offered.window_s)
    assert found["goodputs"] == {"tokens": tokens.goodput, "requests": requests.goodput}
    assert found["step_ms"] == [1e3 * tokens.step_s, 1e3 * requests.step_s]


def test_the_table_says_that_it_is_simulated(capsys: pytest.CaptureFixture[str]) -> None:
    assert steady.main(GIVEN) == 0
    told = capsys.readouterr().out.splitlines()
    assert told[0].startswith("simulated")
    assert [line.split()[1] for line in told[2:]] == ["calm", "upper", "one"]


def test_nonsense_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert steady.main(["--policy", "fastest"]) == 2
    assert "fastest" in capsys.readouterr().err

"""The verdicts of throughput, and which runs are measured in real time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks import throughput
from benchmarks.comparing import Session
from benchmarks.loose_slos import LooseExperiment
from benchmarks.throughput import AS_THEY_ARE, LOOSE, NONE, rows_of
from serving.sim.compare.experiments import Experiment, Task
from tests.unit.serving.sim.bench_examples import InProcessRunner, fake_result

UNCACHED_RUNNERS: list[InProcessRunner] = []


def fake_run(task: Task) -> dict[str, Any]:
    """calm loses 3% with loose SLOs, and nothing without tags."""
    if isinstance(task, LooseExperiment):
        is_slower = task.is_tagged and task.policy.name == "calm"
        result = {"mean_e2el_s": 10.0, "arrived": 9, "finished": 9}
        return result | {"throughput_tokens_s": 970.0 if is_slower else 1000.0}
    return fake_result(task)


@pytest.fixture(autouse=True)
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def fake_session(jobs: int) -> Iterator[Session]:
        yield Session(InProcessRunner(jobs=jobs, work=fake_run))

    def recorded_runner(**arguments: Any) -> InProcessRunner:
        UNCACHED_RUNNERS.append(InProcessRunner(**arguments))
        return UNCACHED_RUNNERS[-1]

    UNCACHED_RUNNERS.clear()
    monkeypatch.setattr(throughput, "session", fake_session)
    monkeypatch.setattr(throughput, "Runner", recorded_runner)


def test_at_least_98_percent_of_fcfs_is_ok() -> None:
    rows = list(rows_of(2.0, NONE, {"fcfs": 1000.0, "calm": 980.0, "edf": 979.9}))
    assert [row.is_ok for row in rows] == [None, True, False]
    assert [row.to_fcfs for row in rows] == pytest.approx([1.0, 0.98, 0.9799])


def test_all_three_kinds_of_slos_have_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert throughput.main(["--seeds", "2", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"] is True
    verdicts = {(row["promises"], row["policy"]): row["is_ok"] for row in document["rows"]}
    assert verdicts == {
        (AS_THEY_ARE, "fcfs"): None,
        (AS_THEY_ARE, "calm"): True,
        (LOOSE, "fcfs"): None,
        (LOOSE, "calm"): False,
        (NONE, "fcfs"): None,
        (NONE, "calm"): True,
    }


def test_scheduling_times_are_measured_without_the_cache_in_one_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert throughput.main(["--seeds", "2", "--policy", "edf", "--loads", "1,2"]) == 0
    [runner] = UNCACHED_RUNNERS
    assert (runner.jobs, runner.cache) == (1, None)
    experiments = [task for task in runner.computed if isinstance(task, Experiment)]
    assert sorted((each.load, each.policy.name, each.seed) for each in experiments) == [
        (load, name, 0) for load in (1.0, 2.0) for name in ("edf", "fcfs")
    ]
    captured = capsys.readouterr().out
    assert "simulated throughput" in captured
    assert "real milliseconds" in captured

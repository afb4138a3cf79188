"""The verdicts of throughput, and which runs are measured in real time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from benchmarks import throughput
from benchmarks.comparing import Session
from benchmarks.throughput import AS_THEY_ARE, LOOSE, NONE, rows_of
from benchmarks.unpressed import Unpressed
from serving.sim.compare.experiments import Experiment, Task
from tests.unit.serving.sim.bench_examples import HereRunner, made_up

ALONE: list[HereRunner] = []


def made_up_here(task: Task) -> dict[str, Any]:
    """Loose promises cost calm 3%, no promises nothing."""
    if isinstance(task, Unpressed):
        is_slower = task.is_tagged and task.policy.name == "calm"
        done = {"mean_e2el_s": 10.0, "arrived": 9, "finished": 9}
        return done | {"throughput_tokens_s": 970.0 if is_slower else 1000.0}
    return made_up(task)


@pytest.fixture(autouse=True)
def made_up_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def made_up_session(jobs: int) -> Iterator[Session]:
        yield Session(HereRunner(jobs=jobs, work=made_up_here))

    def alone(**given: Any) -> HereRunner:
        ALONE.append(HereRunner(**given))
        return ALONE[-1]

    ALONE.clear()
    monkeypatch.setattr(throughput, "session", made_up_session)
    monkeypatch.setattr(throughput, "Runner", alone)


def test_98_percent_of_fcfs_is_enough_and_less_is_not() -> None:
    rows = list(rows_of(2.0, NONE, {"fcfs": 1000.0, "calm": 980.0, "edf": 979.9}))
    assert [row.is_ok for row in rows] == [None, True, False]
    assert [row.to_fcfs for row in rows] == pytest.approx([1.0, 0.98, 0.9799])


def test_all_three_sorts_of_promises_are_judged(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_milliseconds_are_of_runs_computed_anew_in_one_process(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert throughput.main(["--seeds", "2", "--policy", "edf", "--loads", "1,2"]) == 0
    [runner] = ALONE
    assert (runner.jobs, runner.cache) == (1, None)
    cases = [task for task in runner.computed if isinstance(task, Experiment)]
    assert sorted((case.load, case.policy.name, case.seed) for case in cases) == [
        (load, name, 0) for load in (1.0, 2.0) for name in ("edf", "fcfs")
    ]
    captured = capsys.readouterr().out
    assert "simulated throughput" in captured
    assert "real milliseconds" in captured

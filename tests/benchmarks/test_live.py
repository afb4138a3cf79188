"""What live compares: nonsense is refused before the engine starts; load 1.0 is that of bench."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from benchmarks import live
from serving.sim.compare.capacity import CapacityExperiment
from tests.unit.serving.sim.bench_examples import CAPACITY, CODER, made_up


def no_engine(*_: Any) -> NoReturn:
    raise AssertionError("the engine was started")


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--policy", "nope"], "policy='nope'"),
        (["--policy", "fcfs", "--policy", "fcfs"], "each policy once"),
        (["--workload", "nope"], "workload='nope'"),
        (["--loads", "high"], "commas between"),
        (["--loads", "0"], "above 0"),
        (["--seeds", "0"], "seeds=0"),
        (["--window-s", "0"], "window_s=0.0"),
    ],
)
def test_nonsense_ends_with_an_error_before_the_engine_starts(
    given: list[str],
    told: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(live, "replaying_engine", no_engine)
    assert live.main(given) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert told in captured.err


def test_load_one_is_the_mean_over_the_seeds_that_bench_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CapacityExperiment, "run", made_up)
    assert made_up(CapacityExperiment(setting=CODER, seed=0))["programs_s"] != CAPACITY
    assert live.drained_by_fcfs(CODER) == pytest.approx(CAPACITY)

"""The live benchmark: it rejects invalid arguments before the engine starts; its load 1.0."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest

from benchmarks import live
from serving.sim.compare.capacity import CapacityExperiment
from tests.unit.serving.sim.bench_examples import CAPACITY, CODER, fake_result


def no_engine(*_: Any) -> NoReturn:
    raise AssertionError("the engine was started")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "nope"], "policy='nope'"),
        (["--policy", "fcfs", "--policy", "fcfs"], "each only once"),
        (["--workload", "nope"], "workload='nope'"),
        (["--loads", "high"], "separated by commas"),
        (["--loads", "0"], "above 0"),
        (["--seeds", "0"], "seeds=0"),
        (["--window-s", "0"], "window_s=0.0"),
    ],
)
def test_an_invalid_argument_is_an_error_before_the_engine_starts(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(live, "replaying_engine", no_engine)
    assert live.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error: ")
    assert message in captured.err


def test_load_1_is_the_mean_over_the_same_seeds_as_in_bench(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CapacityExperiment, "run", fake_result)
    assert fake_result(CapacityExperiment(config=CODER, seed=0))["programs_s"] != CAPACITY
    assert live.drained_by_fcfs(CODER) == pytest.approx(CAPACITY)

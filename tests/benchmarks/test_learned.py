"""The comparison of what is known of the future: its configurations, and what is printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.learned import (
    LEARNED,
    ORACLE,
    TRACES,
    Row,
    kinds,
    main,
    table,
    workloads_in,
)
from serving.sim.compare.compare import Goodputs
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.workloads.load_generator import Source

CONFIG = ExperimentConfig(source=Source.generator("agentic"))


def test_the_oracle_comes_first_and_every_kind_is_another_experiment() -> None:
    configs = kinds(CONFIG, None)
    assert next(iter(configs)) == ORACLE
    assert LEARNED in configs
    assert len({json.dumps(each.predictions_key()) for each in configs.values()}) == len(configs)


def test_a_trace_is_divided_into_what_is_learned_from_and_what_is_measured(tmp_path: Path) -> None:
    for path in TRACES.values():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        workflows = [
            {"stages": [{"state": "ask", "requests": [{"in": 10, "out": number}]}]}
            for number in range(1, 6)
        ]
        (tmp_path / path).write_text(json.dumps({"source": "made up", "workflows": workflows}))
    found = workloads_in(tmp_path, tmp_path)
    for name in TRACES:
        measured, learned_from = found[name]
        assert learned_from is not None
        lengths = [
            [workflow.stages[0].calls[0].output_tokens for workflow in source.read().workflows]
            for source in (learned_from, measured)
        ]
        assert lengths == [[1, 3, 5], [2, 4]]


def test_without_data_the_traces_are_left_out_and_it_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(workloads_in(None, tmp_path)) == {"mixed", "agentic"}
    assert "left out" in capsys.readouterr().err


def test_only_learned_predictions_have_a_verdict() -> None:
    def row(predictions: str, share: float) -> Row:
        return Row("agentic", 1.0, predictions, Goodputs(100.0, 1.0), (share, 0.95))

    assert row(LEARNED, 0.9).is_ok
    assert row(LEARNED, 0.89).is_ok is False
    assert row("none", 0.1).is_ok is None
    lines = table([row(ORACLE, 1.0), row(LEARNED, 0.89), row("none", 0.1)]).splitlines()
    assert lines[0] == "agentic at 1x: simulated goodput a second"
    assert lines[3].endswith("0.89  0.95  MISS")
    assert lines[4].endswith("0.10  0.95")


def test_an_unknown_workload_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--workload", "nothing"]) != 0
    assert "known are mixed, agentic" in capsys.readouterr().err

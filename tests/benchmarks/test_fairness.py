"""The effect of a flood on other users: which users count, the baseline, the table."""

from __future__ import annotations

import json

import pytest

from benchmarks.fairness import Cell, FloodExperiment, Row, main, table, with_fairness
from benchmarks.floods import NO_FLOOD
from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.workloads.load_generator import Source

CELL = Cell("calm", 0.7, 0.5, "strict")
BRIEF = ExperimentConfig(source=Source.generator("deadline"), window_s=10.0, warmup_s=2.0)
"""A short run: all of its programs are decided within 30 s."""


def fake_document(tokens: float, requests: float = 1.0) -> dict[str, float]:
    return {
        "tokens": tokens,
        "requests": requests,
        "least_user_tokens": tokens / 10,
        "flooder_tokens": 5.0,
    }


def test_shares_are_ratios_of_means_over_the_seeds() -> None:
    row = Row.of(
        CELL,
        [fake_document(10.0), fake_document(20.0)],
        [fake_document(20.0), fake_document(40.0, requests=3.0)],
    )
    assert (row.token_share, row.request_share, row.least_user_share) == (0.5, 0.5, 0.5)
    assert (row.policy, row.fairness, row.flood, row.flooder_tokens_s) == ("calm", 0.5, "strict", 5)


def test_a_share_of_a_zero_baseline_is_a_dash() -> None:
    row = Row.of(CELL, [fake_document(1.0)], [fake_document(0.0, requests=0.0)])
    assert (row.token_share, row.request_share, row.least_user_share) == (None,) * 3
    assert table([row]).splitlines()[-1].split()[-4:] == ["-", "-", "-", "5"]


def test_the_baseline_of_a_cell_has_no_flood_and_no_fairness() -> None:
    assert CELL.baseline == Cell("calm", 0.7, 0.0, NO_FLOOD)
    spec = with_fairness(PolicySpec("calm", {"pace": 0.5}), 0.9)
    assert spec.params == {"pace": 0.5, "fairness": 0.9}


@pytest.mark.usefixtures("imported_vllm")
def test_a_flood_lowers_the_goodput_of_the_ten_users_and_is_counted_separately() -> None:
    def run(flood: str) -> dict[str, float]:
        task = FloodExperiment(
            config=BRIEF, policy=PolicySpec("calm"), rate_per_s=2.0, seed=0, flood=flood
        )
        return task.run()

    baseline, flooded = run(NO_FLOOD), run("short answers")
    assert baseline["flooder_tokens"] == 0.0
    assert 0.0 < baseline["least_user_tokens"] < baseline["tokens"]
    assert flooded["flooder_tokens"] > 0.0
    assert flooded["tokens"] < baseline["tokens"]


def test_the_flood_is_part_of_an_experiment_s_key() -> None:
    task = FloodExperiment(
        config=BRIEF, policy=PolicySpec("fcfs"), rate_per_s=1.0, seed=0, flood="strict"
    )
    other = FloodExperiment(
        config=BRIEF, policy=PolicySpec("fcfs"), rate_per_s=1.0, seed=0, flood="impossible"
    )
    assert json.dumps(task.key()) != json.dumps(other.key())
    assert task.weight == other.weight > 8.0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--fairness", "1.5"], "fairness"),
        (["--policy", "unknown"], "unknown"),
        (["--policy", "calm:fairness=0.9"], "--fairness"),
        (["--loads", "much"], "loads"),
    ],
)
def test_an_invalid_argument_is_an_error_in_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--seeds", "1"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("error: ")
    assert message in lines[-1]

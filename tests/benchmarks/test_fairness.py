"""What a flood costs the others: who is counted, what it is held against, what is printed."""

from __future__ import annotations

import json

import pytest

from benchmarks.fairness import Cell, Flooded, Row, main, table, with_fairness
from benchmarks.floods import NO_FLOOD
from serving.policies.table import PolicySpec
from serving.sim.compare.experiment_config import ExperimentConfig
from serving.sim.workloads.load_generator import Source

CELL = Cell("calm", 0.7, 0.5, "strict")
BRIEF = ExperimentConfig(source=Source.generator("deadline"), window_s=10.0, warmup_s=2.0)
"""All of it is decided within half a minute."""


def earned(tokens: float, requests: float = 1.0) -> dict[str, float]:
    return {
        "tokens": tokens,
        "requests": requests,
        "least_user_tokens": tokens / 10,
        "flooder_tokens": 5.0,
    }


def test_shares_are_of_the_means_over_the_seeds() -> None:
    row = Row.of(CELL, [earned(10.0), earned(20.0)], [earned(20.0), earned(40.0, requests=3.0)])
    assert (row.token_share, row.request_share, row.least_user_share) == (0.5, 0.5, 0.5)
    assert (row.policy, row.fairness, row.flood, row.flooder_tokens_s) == ("calm", 0.5, "strict", 5)


def test_a_share_of_nothing_is_no_number() -> None:
    row = Row.of(CELL, [earned(1.0)], [earned(0.0, requests=0.0)])
    assert (row.token_share, row.request_share, row.least_user_share) == (None,) * 3
    assert table([row]).splitlines()[-1].split()[-4:] == ["-", "-", "-", "5"]


def test_a_cell_is_held_against_the_same_without_flood_and_fairness() -> None:
    assert CELL.alone == Cell("calm", 0.7, 0.0, NO_FLOOD)
    spec = with_fairness(PolicySpec("calm", {"margin": 0.5}), 0.9)
    assert spec.params == {"margin": 0.5, "fairness": 0.9}


@pytest.mark.usefixtures("imported_vllm")
def test_a_flood_takes_from_the_ten_and_is_counted_apart() -> None:
    def found(flood: str) -> dict[str, float]:
        task = Flooded(
            setting=BRIEF, policy=PolicySpec("calm"), rate_per_s=2.0, seed=0, flood=flood
        )
        return task.run()

    alone, flooded = found(NO_FLOOD), found("strict")
    assert alone["flooder_tokens"] == 0.0
    assert 0.0 < alone["least_user_tokens"] < alone["tokens"]
    assert flooded["flooder_tokens"] > 0.0
    assert flooded["tokens"] < alone["tokens"]


def test_what_its_result_depends_on_is_in_its_key() -> None:
    task = Flooded(setting=BRIEF, policy=PolicySpec("fcfs"), rate_per_s=1.0, seed=0, flood="strict")
    other = Flooded(
        setting=BRIEF, policy=PolicySpec("fcfs"), rate_per_s=1.0, seed=0, flood="impossible"
    )
    assert json.dumps(task.key()) != json.dumps(other.key())
    assert task.weight == other.weight > 8.0


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (["--fairness", "1.5"], "fairness"),
        (["--policy", "nobody"], "nobody"),
        (["--policy", "calm:fairness=0.9"], "--fairness"),
        (["--loads", "much"], "loads"),
    ],
)
def test_nonsense_is_an_error_in_a_line(
    given: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*given, "--seeds", "1"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("error: ")
    assert told in lines[-1]

"""`orchestrate bench --capacity`: what it searches, prints and refuses."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from cli.work import bench_session
from serving.sim.compare.experiments import Experiment, Task
from tests.cli.cli_samples import exit_code
from tests.unit.serving.sim.bench_examples import CAPACITY, InProcessRunner, keeping

POLICIES = ("--policy", "fcfs", "--policy", "calm")
SEARCH = ("bench", "coder", *POLICIES, "--capacity", "0.9", "--replicas", "1,2", "--seeds", "10-11")


@pytest.fixture(autouse=True)
def fake_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the results of the scheduler by made-up ones; everything else is real."""
    monkeypatch.setattr(bench_session, "Runner", partial(InProcessRunner, work=keeping))
    monkeypatch.setenv("COLUMNS", "100")


def test_the_table_has_each_policy_on_each_number_of_machines(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code(*SEARCH) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert lines[:2] == [
        "coder: the highest load at which 90% of the promises are kept, simulated in virtual time",
        "600 s after 60 s of warm-up, seeds 10-11 (for reporting)",
    ]
    assert lines[2] == "noisy predictions"
    rows = [line.split() for line in lines if line.startswith(("fcfs", "calm"))]
    assert [row[:2] for row in rows] == [["fcfs", "1"], ["fcfs", "2"], ["calm", "1"], ["calm", "2"]]
    # nine in ten are kept at the limits of 0.7 and 1.6
    assert [float(row[2].rstrip("x")) for row in rows] == pytest.approx(
        [0.7, 0.7, 1.6, 1.6], rel=0.03
    )
    assert 90 <= float(rows[0][3].rstrip("%")) < 93
    assert rows[0][4:6] == ["of", "2,000"]
    assert float(rows[3][6]) == pytest.approx(2 * 1.6 * CAPACITY, rel=0.03)
    assert not rows[0][7].endswith("%")
    assert float(rows[2][7].rstrip("%")) == pytest.approx(100 * (1 - 0.7 / 1.6), abs=3)
    assert all(len(line) <= 160 for line in lines)
    assert "measuring the capacity under fcfs (simulated)" in printed.err
    assert "warning" not in printed.err


def test_the_document_says_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*SEARCH, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"] is True
    assert (document["kept_share"], document["seeds"]) == (0.9, [10, 11])
    by_machines = {(row["policy"], row["replicas"]): row for row in document["rows"]}
    assert len(by_machines) == 4
    assert (document["slots"], document["slo_scale"], document["arrivals"]) == (256, 1.0, None)
    row = by_machines["calm", 2]
    kept = {each["load"]: each["met"] / each["promised"] for each in row["tries"]}
    assert kept[row["load"]] >= 0.9 > kept[row["too_high"]]
    assert row["load"] <= 1.6 <= row["too_high"] <= 1.03 * row["load"]
    assert row["programs_s"] == pytest.approx(2 * row["load"] * CAPACITY)
    assert row["saving"] == pytest.approx(1 - by_machines["fcfs", 2]["load"] / row["load"])


def test_a_limit_that_rests_on_few_promises_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def few(task: Task) -> dict[str, Any]:
        result = keeping(task)
        if isinstance(task, Experiment):
            met = 10 if task.load <= 1 else 8
            result["report"]["counts"] = {"arrived": 10, "promised": 11, "met": met}
        return result

    monkeypatch.setattr(bench_session, "Runner", partial(InProcessRunner, work=few))
    assert exit_code("bench", "coder", "--capacity", "0.9", "--seeds", "1") == 0
    printed = capsys.readouterr()
    assert "warning: a limit rests on 11 promises" in " ".join(printed.err.split())
    assert "standard error of 8.7 points" in " ".join(printed.err.split())
    assert "90.9% of 11" in printed.out


def test_a_share_is_printed_as_it_was_given(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("bench", "coder", "--policy", "calm", "--capacity", "0.995") == 0
    assert "99.5% of the promises" in capsys.readouterr().out


def test_a_single_policy_saves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("bench", "coder", "--policy", "calm", "--capacity", "0.9") == 0
    assert "saves" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--capacity", "0"], "capacity=0.0: must be a share"),
        (["--capacity", "90"], "capacity=90.0: must be a share"),
        (["--capacity", "nan"], "must be a share"),
        (["--replicas", "2"], "--replicas 2: add --capacity"),
        (["--capacity", "0.9", "--replicas", "two"], "whole numbers separated by commas"),
        (["--capacity", "0.9", "--replicas", ""], "whole numbers"),
        (["--capacity", "0.9", "--replicas", "0"], "from 1 to 64"),
        (["--capacity", "0.9", "--replicas", "2,2"], "only once"),
        (["--capacity", "0.9", "--loads", "1"], "leave out --loads 1"),
        (["--capacity", "0.9", "--plot", "a.png"], "leave out --plot"),
        (["--capacity", "0.9", "--engine", "vllm"], "leave out --engine vllm"),
        (["--capacity", "0.9", "--suite"], "leave out --capacity"),
    ],
)
def test_bad_input_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("bench", *arguments) == 2
    printed = capsys.readouterr()
    assert message in printed.err
    assert not printed.out

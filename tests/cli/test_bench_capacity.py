"""`orchestrate bench --capacity`: what it searches, prints and refuses."""

from __future__ import annotations

import json
from functools import partial

import pytest

from cli.work import bench_session
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
        "600 s after 60 s of warm-up, seeds 10-11 (for reporting), noisy predictions",
    ]
    rows = [line.split() for line in lines if line.startswith(("fcfs", "calm"))]
    assert [row[:2] for row in rows] == [["fcfs", "1"], ["fcfs", "2"], ["calm", "1"], ["calm", "2"]]
    # nine in ten are kept at the limits of 0.7 and 1.6
    assert [float(row[2].rstrip("x")) for row in rows] == pytest.approx(
        [0.7, 0.7, 1.6, 1.6], rel=0.03
    )
    assert float(rows[3][3]) == pytest.approx(2 * 1.6 * CAPACITY, rel=0.03)
    assert not rows[0][4].endswith("%")
    assert float(rows[2][4].rstrip("%")) == pytest.approx(100 * (1 - 0.7 / 1.6), abs=3)
    assert all(len(line) <= 160 for line in lines)
    assert "measuring the capacity under fcfs (simulated)" in printed.err


def test_the_document_says_what_was_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code(*SEARCH, "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["simulated"] is True
    assert (document["kept_share"], document["seeds"]) == (0.9, [10, 11])
    by_machines = {(row["policy"], row["replicas"]): row for row in document["rows"]}
    assert len(by_machines) == 4
    row = by_machines["calm", 2]
    assert row["load"] <= 1.6 <= row["too_high"] <= 1.03 * row["load"]
    assert row["programs_s"] == pytest.approx(2 * row["load"] * CAPACITY)
    assert row["saving"] == pytest.approx(1 - by_machines["fcfs", 2]["load"] / row["load"])


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

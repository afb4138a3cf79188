"""The benchmark of deadlines end to end: its arrivals, what counts as kept, a small measurement."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.deep_research.report import Report
from agents.tree_of_thoughts.solution import Solution
from benchmarks import end_to_end
from benchmarks.end_to_end import BOTH, of_pipeline
from benchmarks.end_to_end_runs import Cell, Outcome, cut_of
from benchmarks.end_to_end_tasks import (
    PIPELINES,
    RESEARCH,
    TREES,
    Task,
    arrivals_of,
    questions,
)
from benchmarks.reproduce import ROOT

ISOLATED_S = {RESEARCH: 5.0, TREES: 3.0}
TASKS = {name: [Task(name, str(number)) for number in range(7)] for name in PIPELINES}


def no_engine(*_: Any, **__: Any) -> NoReturn:
    raise AssertionError("the engine was started")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--policy", "nope"], "policy='nope'"),
        (["--loads", "high"], "separated by commas"),
        (["--loads", "0"], "above 0"),
        (["--factors", "4", "2"], "the lower one first"),
        (["--window-s", "0"], "--window-s 0"),
    ],
)
def test_an_invalid_argument_is_an_error_before_anything_runs(
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(end_to_end, "Workplace", no_engine)
    assert end_to_end.main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err


@given(seed=st.integers(0, 99), rate_per_s=st.floats(0.1, 3.0))
@settings(max_examples=20)
def test_deadlines_are_factors_of_a_run_alone_and_only_arrivals_of_the_window_count(
    seed: int, rate_per_s: float
) -> None:
    arrivals = arrivals_of(
        TASKS,
        ISOLATED_S,
        rate_per_s=rate_per_s,
        factors=(2.0, 6.0),
        warmup_s=10.0,
        window_s=30.0,
        seed=seed,
    )
    assert [each.at_s for each in arrivals] == sorted(each.at_s for each in arrivals)
    for each in arrivals:
        assert 2.0 <= each.deadline_s / ISOLATED_S[each.task.pipeline] <= 6.0
        assert each.is_counted == (10.0 <= each.at_s < 40.0)


def test_a_task_is_repeated_only_after_all_others_of_its_pipeline() -> None:
    arrivals = arrivals_of(
        TASKS, ISOLATED_S, rate_per_s=2.0, factors=(2.0, 6.0), warmup_s=0.0, window_s=60.0, seed=1
    )
    for name, tasks in TASKS.items():
        first = [each.task for each in arrivals if each.task.pipeline == name][: len(tasks)]
        assert set(first) == set(tasks)


def test_a_report_with_omissions_and_an_unsolved_puzzle_are_not_whole() -> None:
    report = Report("q", "t", (), (), rounds=1)
    assert cut_of(report) == ()
    assert cut_of(Report("q", "t", (), (), rounds=1, cut=("Reading stopped.",)))
    solved = Solution("24", "g", "a", solved=True, expanded=1, merged=0, tree=())
    assert cut_of(solved) == ()
    unsolved = Solution(
        "24", "g", "a", solved=False, expanded=1, merged=0, tree=(), ended="the deadline came first"
    )
    assert cut_of(unsolved) == ("the deadline came first",)


def test_kept_is_a_whole_result_by_the_deadline() -> None:
    assert Outcome(TREES, 0.0, 5.0, 4.0, is_whole=True).is_kept
    late = Outcome(TREES, 0.0, 5.0, 5.1, is_whole=True)
    cut = Outcome(RESEARCH, 0.0, 5.0, 4.9, is_whole=False)
    lost = Outcome(RESEARCH, 0.0, 5.0, None, is_whole=False)
    assert not any(each.is_kept for each in (late, cut, lost))
    assert [each.in_time for each in (late, cut, lost)] == [False, True, False]


def test_each_pipeline_has_its_own_outcomes() -> None:
    outcomes = (
        Outcome(TREES, 0.0, 5.0, 4.0, is_whole=True),
        Outcome(RESEARCH, 1.0, 5.0, 4.0, is_whole=True, sources=("learned", "fallback")),
    )
    cell = Cell("fcfs", 0.6, 10, outcomes, {}, None)
    assert [len(of_pipeline(cell, name)) for name in (*PIPELINES, BOTH)] == [1, 1, 2]
    assert outcomes[1].is_matched
    assert outcomes[1].num_learned == 1


def test_the_questions_are_about_the_headings_of_the_documents(tmp_path: Path) -> None:
    (tmp_path / "a.md").write_text("# Title of all\n\n## One\n\n## How it works\n\n### Why so?\n")
    assert questions(tmp_path) == [
        "What do the documents say about this: How it works?",
        "What do the documents say about this: Why so?",
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("subprocesses")
def test_a_small_measurement_counts_the_runs_of_the_window(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    # The load is relative to a measured rate: at 1 nothing may arrive in 2 s on a busy machine.
    arguments = "--model random --policy edf --loads 6 --seeds 1 --first-runs 1 --backlog 2"
    arguments += f" --first-seed 1 --warmup-s 0 --window-s 2 --json {out}"
    command = [sys.executable, "-m", "benchmarks.end_to_end", *arguments.split()]
    completed = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(out.read_text())
    [cell] = document["cells"]
    assert document["recorded_runs"] == 4
    assert cell["outcomes"]
    assert all(0.0 <= each["at_s"] < 2.0 for each in cell["outcomes"])
    assert all(each["sources"][0] == "learned" for each in cell["outcomes"] if each["sources"])
    rows = [line for line in completed.stdout.splitlines() if " edf " in line]
    assert len(rows) == len((*PIPELINES, BOTH))

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.reading.learned import LearnedData, read_all_learned
from orchestrator.learning.background_fit import lock_of
from orchestrator.learning.fitting import BUDGET_BYTES
from orchestrator.learning.model_files import models_folder
from patterns.codec import CODEC_VERSION
from store.records import PatternRecord
from tests.cli.cli_samples import exit_code
from tests.cli.pattern_samples import NOW, a_pattern, answered, fill, research_graph
from tests.places import ROOT


def learned_by_application(store_url: str) -> dict[str, LearnedData]:
    return {each.application: each for each in asyncio.run(read_all_learned(store_url))}


@pytest.fixture
def two_applications(store_url: str) -> str:
    """Twelve runs of one application, of two shapes, and one run of another application."""
    ids = [f"{number:012x}" for number in range(12)]
    graphs = [research_graph(rounds=1 + number % 2, plan_s=1.0 + number) for number in range(12)]
    fill(
        store_url,
        runs=ids,
        patterns=[
            *(a_pattern(graph, run_id) for graph, run_id in zip(graphs, ids, strict=True)),
            a_pattern(research_graph(), application="article"),
        ],
        calls=[answered(run_id, 0, "plan", 60) for run_id in ids],
    )
    return store_url


def test_all_applications_are_fitted_by_default(
    two_applications: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("patterns", "fit") == 0
    captured = capsys.readouterr()
    assert captured.err.splitlines() == ["fitting article", "fitting deep-research"]
    assert "article · fitted in " in captured.out
    assert "  library  12 patterns kept, 12 in the library (before: 12), " in captured.out
    assert "  kernel   runs are similar if" in captured.out or "  kernel   all runs" in captured.out
    assert "  lengths  recent answers of each step: 12 calls (a forest needs 200)" in captured.out
    all_learned = learned_by_application(two_applications).values()
    assert all(learned.fit is not None for learned in all_learned)
    assert [learned.num_since for learned in all_learned] == [0, 0]


def test_only_the_named_application_is_fitted_and_only_once_even_if_named_twice(
    two_applications: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("patterns", "fit", "article", "article", "--json") == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    [fit] = document["fits"]
    assert document["left_out"] == []
    assert fit["application"] == "article"
    assert (fit["patterns_kept"], fit["patterns_in_library"]) == (1, 1)
    assert fit["patterns_in_library_before"] == 1
    assert (fit["patterns_unreadable"], fit["length_error"]) == (0, None)
    assert fit["has_length_model"] is False
    assert fit["kernel"].keys() == {"output_tokens", "tool_seconds", "input_tokens"}
    assert learned_by_application(two_applications)["deep-research"].fit is None


def test_a_smaller_budget_keeps_fewer_patterns_with_larger_weights(
    two_applications: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("patterns", "fit", "deep-research", "--budget-bytes", "250", "--json") == 0
    [fit] = json.loads(capsys.readouterr().out)["fits"]
    assert fit["patterns_in_library_before"] == 12
    assert 1 <= fit["patterns_in_library"] < 12
    learned = learned_by_application(two_applications)["deep-research"]
    assert len(learned.patterns) == fit["patterns_in_library"]
    assert sum(pattern.weight for pattern in learned.patterns) == 12
    assert exit_code("patterns", "fit", "deep-research") == 0
    assert f"(before: {fit['patterns_in_library']})" in capsys.readouterr().out


def test_by_silhouette_keeps_one_pattern_per_kind_of_run(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    graphs = [research_graph(rounds=1 + number % 2) for number in range(12)]
    fill(store_url, patterns=[a_pattern(graph) for graph in graphs])
    assert exit_code("patterns", "fit", "--by-silhouette", "--json") == 0
    [fit] = json.loads(capsys.readouterr().out)["fits"]
    assert fit["patterns_in_library"] == 2


def fill_forest(store_url: str) -> None:
    """A run with enough calls for a forest."""
    run_id = "aaaa00010000"
    calls = [
        answered(run_id, node, "plan", 50 + node % 7, started_s=node, finished_s=node + 1.0)
        for node in range(210)
    ]
    fill(store_url, runs=[run_id], patterns=[a_pattern(research_graph(), run_id)], calls=calls)


def test_a_forest_is_fitted_if_there_are_enough_calls(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_forest(store_url)
    assert exit_code("patterns", "fit") == 0
    assert "  lengths  a forest on 210 calls\n" in capsys.readouterr().out
    assert exit_code("patterns", "list") == 0
    assert "forest on 210 calls" in capsys.readouterr().out


@pytest.mark.usefixtures("new_default_store")
def test_without_runs_the_message_suggests_a_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("patterns", "fit") == 0
    assert "try `orchestrate run`" in capsys.readouterr().err
    assert exit_code("patterns", "fit", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"fits": [], "left_out": []}
    assert exit_code("patterns", "fit", "deep-research") == 2
    assert not (tmp_path / "runs.db").exists()


def test_an_unknown_application_is_refused_before_any_is_fitted(
    two_applications: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("patterns", "fit", "article", "nonsense") == 2
    captured = capsys.readouterr()
    assert "applications with patterns: article, deep-research" in captured.err
    assert captured.out == ""
    assert learned_by_application(two_applications)["article"].fit is None


def test_an_application_that_another_process_is_fitting_is_skipped(
    two_applications: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_of(two_applications, "article"):
        assert exit_code("patterns", "fit", "--json") == 5
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["left_out"] == ["article"]
    assert [fit["application"] for fit in document["fits"]] == ["deep-research"]
    assert "error: another process is fitting article: try again when it has ended" in captured.err
    assert exit_code("patterns", "fit", "article") == 0


def test_the_library_is_fitted_even_if_the_length_model_cannot_be_saved(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_forest(store_url)
    models_folder(store_url).write_text("a file, not a folder")
    assert exit_code("patterns", "fit") == 0
    captured = capsys.readouterr()
    assert captured.err.count("warning: ") == 1
    assert "cannot write the length model" in captured.err
    assert "  lengths  not saved: cannot write the length model" in captured.out
    assert learned_by_application(store_url)["deep-research"].num_since == 0
    assert exit_code("patterns", "fit", "--json") == 0
    [fit] = json.loads(capsys.readouterr().out)["fits"]
    assert fit["has_length_model"] is False
    assert fit["length_error"].startswith("cannot write the length model")


def test_patterns_that_this_version_cannot_read_are_kept_and_reported(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = PatternRecord("deep-research", b"\xff\xff", CODEC_VERSION + 1, NOW)
    fill(store_url, patterns=[a_pattern(research_graph()), newer])
    assert exit_code("patterns", "fit") == 0
    output = capsys.readouterr().out
    assert "  library  2 patterns kept, 1 in the library" in output
    assert "  ignored  1 pattern that this version cannot read; kept in the store" in output
    assert exit_code("patterns", "fit", "--json") == 0
    [fit] = json.loads(capsys.readouterr().out)["fits"]
    assert (fit["patterns_kept"], fit["patterns_unreadable"]) == (2, 1)


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_fit_does_not_change_the_library(
    two_applications: str, number: signal.Signals
) -> None:
    before = learned_by_application(two_applications)
    command = [sys.executable, str(Path(__file__).with_name("slow_fit.py"))]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "clustering started" in line:
                process.send_signal(number)
                break
        out, rest = process.communicate(timeout=60)
    assert process.returncode == 128 + number, "".join([*lines, rest])
    assert "the library of article is unchanged" in rest
    assert "Traceback" not in rest
    assert out == ""
    assert learned_by_application(two_applications) == before
    assert exit_code("patterns", "fit") == 0  # the lock was released


def test_the_help_names_the_default_budget(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("patterns", "fit", "--help") == 0
    assert f"Default: {BUDGET_BYTES}." in capsys.readouterr().out

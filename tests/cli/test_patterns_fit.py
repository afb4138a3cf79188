from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.reading.learned import Learned, learned_of_all
from orchestrator.learning.background_fit import lock_of
from orchestrator.learning.fitting import BUDGET_BYTES
from orchestrator.learning.model_files import models_folder
from patterns.codec import CODEC_VERSION
from store.records import PatternRecord
from tests.cli.cli_samples import exit_code
from tests.cli.pattern_samples import NOW, a_pattern, answered, fill, research_graph
from tests.places import ROOT


def known(store_url: str) -> dict[str, Learned]:
    found = asyncio.run(learned_of_all(store_url))
    return {learned.application: learned for learned in found}


@pytest.fixture
def two_applications(store_url: str) -> str:
    """Twelve runs of one application, of two shapes, and one of another."""
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
    told = capsys.readouterr()
    assert told.err.splitlines() == ["fitting article", "fitting deep-research"]
    assert "article · fitted in " in told.out
    assert "  library  12 patterns kept, 12 in the library (before: 12), " in told.out
    assert "  kernel   runs are alike whose stages" in told.out or "  kernel   all runs" in told.out
    assert "  lengths  each step's last answers: 12 calls, and a forest takes 200" in told.out
    found = known(two_applications)
    assert all(learned.fit is not None for learned in found.values())
    assert [learned.num_since for learned in found.values()] == [0, 0]


def test_only_the_named_application_is_fitted_and_only_once(
    two_applications: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("patterns", "fit", "article", "article", "--json") == 0
    told = capsys.readouterr()
    document = json.loads(told.out)
    [fit] = document["fits"]
    assert document["left_out"] == []
    assert fit["application"] == "article"
    assert (fit["patterns_kept"], fit["patterns_in_library"]) == (1, 1)
    assert fit["patterns_in_library_before"] == 1
    assert (fit["patterns_unreadable"], fit["length_error"]) == (0, None)
    assert fit["has_length_model"] is False
    assert fit["kernel"].keys() == {"output_tokens", "tool_seconds", "input_tokens"}
    assert known(two_applications)["deep-research"].fit is None


def test_a_budget_makes_patterns_stand_for_others(
    two_applications: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("patterns", "fit", "deep-research", "--budget-bytes", "250", "--json") == 0
    [fit] = json.loads(capsys.readouterr().out)["fits"]
    assert fit["patterns_in_library_before"] == 12
    assert 1 <= fit["patterns_in_library"] < 12
    learned = known(two_applications)["deep-research"]
    assert len(learned.patterns) == fit["patterns_in_library"]
    assert sum(pattern.weight for pattern in learned.patterns) == 12
    assert exit_code("patterns", "fit", "deep-research") == 0
    assert f"(before: {fit['patterns_in_library']})" in capsys.readouterr().out


def test_the_silhouette_finds_how_many_kinds_of_runs_there_are(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    graphs = [research_graph(rounds=1 + number % 2) for number in range(12)]
    fill(store_url, patterns=[a_pattern(graph) for graph in graphs])
    assert exit_code("patterns", "fit", "--by-silhouette", "--json") == 0
    [fit] = json.loads(capsys.readouterr().out)["fits"]
    assert fit["patterns_in_library"] == 2


def fill_forest(store_url: str) -> None:
    """A run with as many calls as a forest takes."""
    run_id = "aaaa00010000"
    calls = [
        answered(run_id, node, "plan", 50 + node % 7, started_s=node, finished_s=node + 1.0)
        for node in range(210)
    ]
    fill(store_url, runs=[run_id], patterns=[a_pattern(research_graph(), run_id)], calls=calls)


def test_enough_calls_make_a_forest(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_forest(store_url)
    assert exit_code("patterns", "fit") == 0
    assert "  lengths  a forest on 210 calls\n" in capsys.readouterr().out
    assert exit_code("patterns", "list") == 0
    assert "forest on 210 calls" in capsys.readouterr().out


def test_without_runs_it_says_what_to_try(
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
    told = capsys.readouterr()
    assert "there are patterns of: article, deep-research" in told.err
    assert told.out == ""
    assert known(two_applications)["article"].fit is None


def test_what_somebody_else_is_fitting_is_left_to_them(
    two_applications: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with lock_of(two_applications, "article"):
        assert exit_code("patterns", "fit", "--json") == 5
    told = capsys.readouterr()
    document = json.loads(told.out)
    assert document["left_out"] == ["article"]
    assert [fit["application"] for fit in document["fits"]] == ["deep-research"]
    assert "error: another fit of article is under way: try again when it has ended" in told.err
    assert exit_code("patterns", "fit", "article") == 0


def test_the_library_is_fitted_where_the_length_model_cannot_be_saved(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_forest(store_url)
    models_folder(store_url).write_text("in the way")
    assert exit_code("patterns", "fit") == 0
    told = capsys.readouterr()
    assert told.err.count("warning: ") == 1
    assert "cannot write the length model" in told.err
    assert "  lengths  not saved: cannot write the length model" in told.out
    assert known(store_url)["deep-research"].num_since == 0
    assert exit_code("patterns", "fit", "--json") == 0
    [fit] = json.loads(capsys.readouterr().out)["fits"]
    assert fit["has_length_model"] is False
    assert fit["length_error"].startswith("cannot write the length model")


def test_patterns_that_this_version_cannot_read_are_kept_and_told_of(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    newer = PatternRecord("deep-research", b"\xff\xff", CODEC_VERSION + 1, NOW)
    fill(store_url, patterns=[a_pattern(research_graph()), newer])
    assert exit_code("patterns", "fit") == 0
    told = capsys.readouterr().out
    assert "  library  2 patterns kept, 1 in the library" in told
    assert "  unread   1 pattern that this version cannot read: kept, and not learned from" in told
    assert exit_code("patterns", "fit", "--json") == 0
    [fit] = json.loads(capsys.readouterr().out)["fits"]
    assert (fit["patterns_kept"], fit["patterns_unreadable"]) == (2, 1)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_fit_leaves_the_former_library(
    two_applications: str, number: signal.Signals
) -> None:
    before = known(two_applications)
    command = [sys.executable, str(Path(__file__).with_name("slow_fit.py"))]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        told = []
        for line in process.stderr:
            told.append(line)
            if "clusters are sought" in line:
                process.send_signal(number)
                break
        out, rest = process.communicate(timeout=60)
    assert process.returncode == 128 + number, "".join([*told, rest])
    assert "article keeps its former library" in rest
    assert "Traceback" not in rest
    assert out == ""
    assert known(two_applications) == before
    assert exit_code("patterns", "fit") == 0  # nobody holds the lock


def test_the_help_tells_the_budget_that_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("patterns", "fit", "--help") == 0
    assert f"Default: {BUDGET_BYTES}." in capsys.readouterr().out

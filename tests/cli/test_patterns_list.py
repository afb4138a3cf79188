from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.reading.learned import LengthSource
from orchestrator.learning.model_files import model_file, models_folder
from patterns.codec import CODEC_VERSION
from store.records import PatternRecord
from tests.cli.cli_samples import exit_code
from tests.cli.pattern_samples import (
    NOW,
    a_pattern,
    answered,
    fill,
    fill_library,
    research_graph,
    run_articles,
)


def test_without_a_store_the_message_suggests_a_command_and_no_file_is_created(
    new_default_store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("patterns", "list") == 0
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == "no runs to learn from yet: try `orchestrate run`\n"
    assert not new_default_store.exists()


def test_each_application_is_a_row(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_library(store_url)
    assert exit_code("patterns", "list") == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "application    kept  library  stages  last fit  since  length bounds from",
        "deep-research     3        2     4-6   3 h ago      1  max_tokens only",
    ]


def test_patterns_of_runs_are_in_the_library_without_a_fit(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_articles(store_url, 10)
    assert exit_code("patterns", "list") == 0
    [_, line] = capsys.readouterr().out.splitlines()
    assert line.split() == ["article", "10", "10", "2", "never", "10", "recent", "answers"]


def test_json_holds_one_object_per_application(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_library(store_url)
    assert exit_code("patterns", "list", "--json") == 0
    [application] = json.loads(capsys.readouterr().out)["applications"]
    assert application["application"] == "deep-research"
    assert (application["patterns_kept"], application["patterns_in_library"]) == (3, 2)
    assert application["stages"] == [4, 6]
    assert application["runs_since_fit"] == 1
    assert application["fitted_at"].endswith("+00:00")
    assert application["lengths"] == {
        "source": "limit",
        "forest_calls": None,
        "steps": 2,
        "steps_with_answers": 0,
    }


@pytest.mark.usefixtures("new_default_store")
def test_without_a_store_json_is_an_empty_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code("patterns", "list", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {"applications": []}


@pytest.mark.parametrize("width", [40, 56, 76, 80, 200])
def test_the_table_fits_the_terminal(
    store_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
) -> None:
    fill_library(store_url)
    names = ["a-flow-with-quite-a-long-name", "x"]
    fill(store_url, patterns=[a_pattern(research_graph(), application=name) for name in names])
    monkeypatch.setenv("COLUMNS", str(width))
    assert exit_code("patterns", "list") == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(len(line) <= width for line in lines[:4])
    assert "max_tokens only" in "\n".join(lines)


@pytest.mark.parametrize(
    ("width", "headings"),
    [
        (40, "application   kept library last fit"),
        (56, "application   kept library stages last fit since"),
        (80, "application    kept  library  stages  last fit  since  length bounds from"),
    ],
)
def test_narrow_terminals_get_fewer_columns_beside_the_names(
    store_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    headings: str,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    fill_library(store_url)
    assert exit_code("patterns", "list") == 0
    head, line, *below = capsys.readouterr().out.splitlines()
    assert head.rstrip() == headings
    assert line.startswith("deep-research ")
    assert below == ([] if width == 80 else ["deep-research: length bounds from max_tokens only"])


def test_a_terminal_without_unicode_gets_ascii_only(
    store_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.commands.patterns.is_plain_ascii", lambda _: True)
    monkeypatch.setenv("COLUMNS", "40")
    fill(store_url, patterns=[a_pattern(research_graph(), application="a-flow" * 6)])
    assert exit_code("patterns", "list") == 0
    output = capsys.readouterr().out
    assert output.isascii()
    assert "a-flowa-flow" in output.splitlines()[1]
    assert ".. " in output.splitlines()[1]


def test_an_unreadable_pattern_is_warned_of_and_left_out(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = PatternRecord("deep-research", b"\xff\xff", CODEC_VERSION, NOW)
    fill(store_url, patterns=[a_pattern(research_graph()), broken])
    assert exit_code("patterns", "list") == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("warning: skipped as unreadable: pattern 2:")
    assert captured.out.splitlines()[1].split()[:3] == ["deep-research", "2", "1"]


def test_a_damaged_length_model_is_warned_of_and_ignored(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_library(store_url)
    file = model_file(models_folder(store_url), "deep-research")
    file.parent.mkdir()
    file.write_bytes(b"not a model")
    assert exit_code("patterns", "list") == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("warning: ")
    assert "max_tokens only" in captured.out


@pytest.mark.parametrize(
    ("source", "name", "text"),
    [
        (LengthSource(1234, 2, 2), "forest", "forest on 1,234 calls"),
        (LengthSource(None, 2, 2), "step", "recent answers"),
        (LengthSource(None, 3, 2), "step", "recent answers, 2/3 steps"),
        (LengthSource(None, 3, 0), "limit", "max_tokens only"),
    ],
)
def test_the_source_of_length_bounds_has_a_name_and_a_text(
    source: LengthSource, name: str, text: str
) -> None:
    assert source.source == name
    assert str(source) == text


def test_a_step_gets_its_own_bounds_from_ten_answers_on(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = "aaaa00010000"
    calls = [answered(run_id, node, "plan", 50 + node) for node in range(10)]
    calls += [answered(run_id, node, "write", 50 + node) for node in range(10, 19)]
    fill(store_url, runs=[run_id], patterns=[a_pattern(research_graph(), run_id)], calls=calls)
    assert exit_code("patterns", "list") == 0
    assert "recent answers, 1/2 steps" in capsys.readouterr().out

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


def test_an_empty_store_says_what_to_try_and_makes_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("patterns", "list") == 0
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err == "no runs to learn from yet: try `orchestrate run`\n"
    assert not (tmp_path / "runs.db").exists()


def test_an_application_is_a_line(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_library(store_url)
    assert exit_code("patterns", "list") == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        "application    kept  library  stages  last fit  since  answers bounded by",
        "deep-research     3        2     4-6   3 h ago      1  limits only",
    ]


def test_runs_are_learned_from_without_any_fit(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_articles(store_url, 10)
    assert exit_code("patterns", "list") == 0
    [_, line] = capsys.readouterr().out.splitlines()
    assert line.split() == ["article", "10", "10", "2", "never", "10", "last", "answers"]


def test_the_list_as_json(store_url: str, capsys: pytest.CaptureFixture[str]) -> None:
    fill_library(store_url)
    assert exit_code("patterns", "list", "--json") == 0
    [found] = json.loads(capsys.readouterr().out)["applications"]
    assert found["application"] == "deep-research"
    assert (found["patterns_kept"], found["patterns_in_library"]) == (3, 2)
    assert found["stages"] == [4, 6]
    assert found["runs_since_fit"] == 1
    assert found["fitted_at"].endswith("+00:00")
    assert found["lengths"] == {
        "source": "limit",
        "forest_calls": None,
        "steps": 2,
        "steps_with_answers": 0,
    }


def test_an_empty_list_as_json_is_still_one_object(capsys: pytest.CaptureFixture[str]) -> None:
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
    assert "limits only" in "\n".join(lines)


@pytest.mark.parametrize(
    ("width", "heads"),
    [
        (40, "application   kept library last fit"),
        (56, "application   kept library stages last fit since"),
        (80, "application    kept  library  stages  last fit  since  answers bounded by"),
    ],
)
def test_other_columns_give_way_to_the_applications_name(
    store_url: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    heads: str,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    fill_library(store_url)
    assert exit_code("patterns", "list") == 0
    head, line, *below = capsys.readouterr().out.splitlines()
    assert head.rstrip() == heads
    assert line.startswith("deep-research ")
    assert below == ([] if width == 80 else ["deep-research: answers bounded by limits only"])


def test_a_terminal_without_unicode_gets_only_ascii(
    store_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.commands.patterns.is_plain_ascii", lambda _: True)
    monkeypatch.setenv("COLUMNS", "40")
    fill(store_url, patterns=[a_pattern(research_graph(), application="a-flow" * 6)])
    assert exit_code("patterns", "list") == 0
    told = capsys.readouterr().out
    assert told.isascii()
    assert "a-flowa-flow" in told.splitlines()[1]
    assert ".. " in told.splitlines()[1]


def test_a_pattern_that_cannot_be_read_is_warned_of_and_left_out(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = PatternRecord("deep-research", b"\xff\xff", CODEC_VERSION, NOW)
    fill(store_url, patterns=[a_pattern(research_graph()), broken])
    assert exit_code("patterns", "list") == 0
    told = capsys.readouterr()
    assert told.err.startswith("warning: skipped as unreadable: pattern 2:")
    assert told.out.splitlines()[1].split()[:3] == ["deep-research", "2", "1"]


def test_a_damaged_length_model_is_warned_of_and_not_counted_on(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_library(store_url)
    file = model_file(models_folder(store_url), "deep-research")
    file.parent.mkdir()
    file.write_bytes(b"no model")
    assert exit_code("patterns", "list") == 0
    told = capsys.readouterr()
    assert told.err.startswith("warning: ")
    assert "limits only" in told.out


@pytest.mark.parametrize(
    ("source", "name", "words"),
    [
        (LengthSource(1234, 2, 2), "forest", "forest on 1,234 calls"),
        (LengthSource(None, 2, 2), "step", "last answers"),
        (LengthSource(None, 3, 2), "step", "last answers, 2/3 steps"),
        (LengthSource(None, 3, 0), "limit", "limits only"),
    ],
)
def test_what_bounds_answers_is_told_as_far_as_it_goes(
    source: LengthSource, name: str, words: str
) -> None:
    assert source.source == name
    assert str(source) == words


def test_a_step_is_known_once_it_has_enough_answers(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = "aaaa00010000"
    calls = [answered(run_id, node, "plan", 50 + node) for node in range(10)]
    calls += [answered(run_id, node, "write", 50 + node) for node in range(10, 19)]
    fill(store_url, runs=[run_id], patterns=[a_pattern(research_graph(), run_id)], calls=calls)
    assert exit_code("patterns", "list") == 0
    assert "last answers, 1/2 steps" in capsys.readouterr().out

"""`orchestrate run tree-of-thoughts` refuses what is no task before anything slow begins."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from agents.tree_of_thoughts.board_svg import board_svg
from agents.tree_of_thoughts.command import PIPELINE
from agents.tree_of_thoughts.errors import InvalidTask
from cli.failures import ExitCode, exit_code_of
from cli.work.flow_arguments import parameters_of
from cli.work.run_flow import run_flow
from orchestrator import Settings
from orchestrator.testing import ScriptedEngine
from store.printable_text import printable
from tests.unit.agents.tree_of_thoughts_samples import CROSSWORD, knowing, task_path
from tests.unit.orchestrator.orchestrator_samples import store_url


def run(folder: Path, puzzle: str, engine: ScriptedEngine) -> ExitCode:
    [parameter] = [each for each in parameters_of(PIPELINE.flow, taken=()) if each.is_required]
    settings = Settings(store=store_url(folder), fit_every=0)
    return run_flow(
        PIPELINE, {parameter: puzzle}, settings, out=folder / "out", engine=engine, deadline="1m"
    )


@pytest.mark.parametrize("puzzle", ["24", "four five", "missing.toml"])
def test_what_is_no_task_is_refused_before_the_engine_starts(tmp_path: Path, puzzle: str) -> None:
    engine = ScriptedEngine(knowing)
    with pytest.raises(InvalidTask) as refused:
        run(tmp_path, puzzle, engine)
    assert exit_code_of(refused.value) is ExitCode.BAD_INPUT
    assert engine.num_starts == 0
    assert list(tmp_path.iterdir()) == []


def test_a_crossword_is_saved_with_its_board_and_its_tree(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = task_path(tmp_path, CROSSWORD)
    assert run(tmp_path, str(path), ScriptedEngine(knowing)) is ExitCode.DONE
    assert "L A P S E\nA R E N A\n" in capsys.readouterr().out
    assert {each.name for each in (tmp_path / "out").iterdir()} == {
        "solution.md",
        "solution.json",
        "solution-tree.svg",
        "solution-board.svg",
    }


HOSTILE = r"""
kind = "text"
goal = "~~~ Write \u001b]0;title\u0007 about \u001b[31mrain\u001b[0m <script>\nor snow\u202e"
steps = 1
start = "Rain\u0000\u001b[2J"
moves = ["one ```` fence", "two \u001b[31mred", "<b>three</b> & \u202eabc\u009b"]
"""


def test_no_control_character_or_markup_of_a_task_is_printed_or_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = task_path(tmp_path, HOSTILE)
    assert run(tmp_path, str(path), ScriptedEngine(knowing)) is ExitCode.DONE
    saved = (tmp_path / "out" / "solution.md").read_text(encoding="utf-8")
    for text in (capsys.readouterr().out, saved):
        assert printable(text) == text
        assert text.count("\n`````text\n") == text.count("\n`````\n") == 2
        assert "\n\\~\\~\\~ Write" in text
        assert "\\<script>" in text
    picture = (tmp_path / "out" / "solution-tree.svg").read_text(encoding="utf-8")
    assert printable(picture) == picture
    ElementTree.fromstring(picture)


def test_the_picture_of_a_board_is_xml_whatever_its_letters() -> None:
    ElementTree.fromstring(board_svg(["a\x00\x1b&<", "\ufffe\ud800.\u202eß"]))

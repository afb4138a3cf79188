"""Every notebook runs from top to bottom without a screen, and its outputs say what it teaches."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import nbformat
import pytest

from tests.places import ROOT
from tests.svg_reading import assert_harmless, texts

NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))


def read(path: Path) -> Any:
    return nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]


class Executed:
    """A notebook with its outputs."""

    def __init__(self, notebook: Any) -> None:
        outputs = [each for cell in notebook.cells for each in cell.get("outputs", [])]
        self.text = "".join(each.text for each in outputs if each.get("name") == "stdout")
        self.warnings = "".join(each.text for each in outputs if each.get("name") == "stderr")
        self._data = [each.data for each in outputs if "data" in each]

    def of_type(self, media_type: str) -> list[str]:
        return [data[media_type] for data in self._data if media_type in data]

    def found(self, pattern: str) -> list[str]:
        """What a group matches in the printed text, in order."""
        return re.findall(pattern, self.text)

    def progress(self, flow: str) -> list[str]:
        """The last state of each line of progress."""
        return [line for line in self.of_type("text/plain") if line.startswith(f"{flow}: ")]


def first_flow(notebook: Executed) -> None:
    completed, failed, polished = notebook.of_type("text/html")
    assert completed.count(">paragraph<title>") in (2, 3)
    assert "deadline met" in completed
    assert "failed: DeadlineExceeded" in failed
    assert "stroke-dasharray" in failed  # what was cut off
    assert "completed" in polished
    assert "article did not end within its 0.05 s" in notebook.text
    assert notebook.found(r"due at ([\d.]+) s \(fallback\)") == ["15.0", "30.0"]
    [versions] = notebook.found(r"with (\d+) versions begun")
    assert int(versions) >= 2
    assert notebook.progress("article")[0].startswith("article: completed in ")


def langgraph_tools(notebook: Executed) -> None:
    [(ended_s, num_calls, num_cut)] = notebook.found(
        r"completed after ([\d.]+) s; (\d+) calls, (\d+) cut off"
    )
    assert float(ended_s) >= 5.5  # not before the time that is left for the report
    assert int(num_cut) == 1
    [num_notes] = notebook.found(r"(\d+) notes; the first: (?:The|Calls) ")
    assert 1 <= int(num_notes) <= int(num_calls)
    [picture] = notebook.of_type("text/html")
    assert "tool" in picture


def tree_of_thoughts(notebook: Executed) -> None:
    solved, before = notebook.text.split("not solved: the best so far\n")
    assert solved.startswith("solved\n")
    assert solved.splitlines()[3].endswith("= 24")
    [(few, many)] = re.findall(r"thoughts expanded: (\d+), before: (\d+)", before)
    assert int(few) < int(many)
    [tree] = notebook.of_type("image/svg+xml")
    assert "#c9e8c9" in tree  # the solution
    [picture] = notebook.of_type("text/html")
    assert "deadline met" in picture


def compare_policies(notebook: Executed) -> None:
    rows = notebook.found(r"(\S+) programs/s +(\S+) +([\d.]+) in time/s \(simulated\)")
    goodput = {(rate, policy): float(value) for rate, policy, value in rows}
    assert len(goodput) == 8
    assert len({value for (rate, _), value in goodput.items() if rate == "0.1"}) == 1
    assert goodput["1", "calm"] > goodput["1", "fcfs"]
    assert notebook.of_type("image/png")


def learning(notebook: Executed) -> None:
    sources = notebook.found(r"due after \d+% \((\w+)\)")
    assert sources == ["fallback"] * 3 + ["learned"] * 3
    stages = notebook.found(r"due after (\d+)% \(learned\), ended after (\d+)%")
    assert max(abs(int(due) - int(ended)) for due, ended in stages) <= 40
    assert "6 patterns" in notebook.text
    assert "learned from 5 of 5 past patterns" in notebook.text
    timeline, library = notebook.of_type("text/html")
    assert "sub-deadline" in timeline
    for stage in ("title", "text", "mood"):
        assert f">{stage}" in library
    [progress] = [each for each in notebook.of_type("text/plain") if each.startswith("5 runs: ")]
    assert progress.startswith("5 runs: 5 completed; last essay: completed in ")


CHECKS: dict[str, Callable[[Executed], None]] = {
    "1_first_flow": first_flow,
    "2_langgraph_tools": langgraph_tools,
    "3_tree_of_thoughts": tree_of_thoughts,
    "4_compare_policies": compare_policies,
    "5_learning": learning,
}


def test_each_notebook_has_a_check() -> None:
    assert [path.stem for path in NOTEBOOKS] == sorted(CHECKS)


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_runs_and_shows_what_it_says(path: Path, tmp_path: Path) -> None:
    environment = os.environ | {
        "ORCHESTRATE_STORE": f"sqlite:///{tmp_path / 'runs.db'}",
        "IPYTHONDIR": str(tmp_path / "ipython"),
        "JUPYTER_RUNTIME_DIR": str(tmp_path / "jupyter"),
    }
    target = tmp_path / path.name
    process = subprocess.run(
        [sys.executable, "-m", "tests.examples.execute_notebook", str(path), str(target)],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    executed = Executed(read(target))
    CHECKS[path.stem](executed)
    for picture in (*executed.of_type("text/html"), *executed.of_type("image/svg+xml")):
        assert ElementTree.fromstring(picture) is not None  # well-formed
        assert "<script" not in picture
    if path.stem != "4_compare_policies":  # it uses no model
        assert "random weights: its text is meaningless" in executed.warnings


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.stem for path in NOTEBOOKS])
def test_a_notebook_is_stored_without_outputs(path: Path) -> None:
    """They would go stale, and differ each time."""
    for cell in read(path).cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None


def test_the_picture_of_the_readme_is_harmless_and_by_the_default_model() -> None:
    picture = (ROOT / "docs" / "images" / "timeline.svg").read_text(encoding="utf-8")
    assert_harmless(picture)
    assert any(each.endswith("model smollm2") for each in texts(picture))
    assert "](docs/images/timeline.svg)" in (ROOT / "README.md").read_text(encoding="utf-8")

"""The orchestrate command in processes of its own, with vLLM and a store."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from serving.engine.setup.random_model import ensure_random_model
from tests.places import ROOT

DOCS = ROOT / "docs"
QUESTION = "How is a deadline divided over the stages of a run?"
LIMIT_S = 300
SMALL = ("--rounds", "1", "--width", "2")


class Shell:
    """Starts commands with the same store."""

    def __init__(self, folder: Path) -> None:
        self._environment = os.environ | {"ORCHESTRATE_STORE": f"sqlite:///{folder / 'runs.db'}"}

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "cli", *arguments],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def research(self, *options: str, deadline: str = "120s") -> subprocess.Popen[str]:
        corpus = ("--corpus", str(DOCS), "--deadline", deadline)
        return self.start("run", "deep-research", QUESTION, *corpus, *options)

    def runs(self) -> list[dict[str, Any]]:
        """The recorded runs; the store must be readable after any end of a command."""
        listing = self.start("ps", "--json")
        output, errors = listing.communicate(timeout=LIMIT_S)
        assert listing.returncode == 0, errors
        listed: list[dict[str, Any]] = json.loads(output)["runs"]
        return listed


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def test_two_processes_can_use_a_store_at_once_and_both_runs_are_recorded(shell: Shell) -> None:
    processes = [shell.research("--json", *SMALL) for _ in range(2)]
    reports = []
    for process in processes:
        output, errors = process.communicate(timeout=LIMIT_S)
        assert process.returncode == 0, errors
        reports.append(json.loads(output))
    runs = shell.runs()
    assert {run["id"] for run in runs} == {report["run_id"] for report in reports}
    assert [run["status"] for run in runs] == ["completed"] * 2
    for report in reports:
        assert report["citations"], "a report has citations"
        for citation in report["citations"]:
            lines = (DOCS / citation["file"]).read_text(encoding="utf-8").split("\n")
            named = lines[citation["line"] - 1 : citation["end_line"]]
            assert citation["quote"] in " ".join(line.strip() for line in named)


def test_an_interrupted_run_ends_and_is_recorded_as_cancelled(shell: Shell) -> None:
    process = shell.research("--rounds", "20", "--width", "8")
    assert process.stderr is not None
    for line in process.stderr:
        if "stage" in line:  # the first call is in the engine
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 130, errors
    [run] = shell.runs()
    assert run["status"] == "cancelled"
    assert run["id"] in errors


def test_a_signal_after_the_report_does_not_change_a_completed_run(shell: Shell) -> None:
    process = shell.research("--json", *SMALL)
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line == "}\n":  # the report is complete, and the engine not closed yet
            break
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, errors
    [run] = shell.runs()
    assert (run["id"], run["status"]) == (json.loads("".join(lines))["run_id"], "completed")


def test_a_model_that_cannot_be_loaded_gives_a_message_and_no_run(
    shell: Shell, tmp_path: Path
) -> None:
    broken = tmp_path / "broken-model"
    shutil.copytree(ensure_random_model(), broken)
    (broken / "model.safetensors").write_bytes(b"no weights")
    process = shell.research("--model", str(broken))
    output, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 4, errors
    assert f"cannot load model '{broken}'" in errors
    assert "Traceback" not in errors
    assert output == ""
    assert shell.runs() == []

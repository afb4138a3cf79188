"""`orchestrate resume` and `orchestrate answer`, on runs of a killed script."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from cli.commands.resume import resume_run, runs_to_resume
from orchestrator import Settings
from orchestrator.testing import ScriptedEngine
from tests.cli.cli_samples import exit_code
from tests.places import ROOT

pytestmark = pytest.mark.usefixtures("subprocesses")

SCRIPT = """
import asyncio, os, signal, sys
from orchestrator import Settings, flow, input_required, open_runtime, step
from orchestrator.testing import ScriptedEngine

@step
async def count(word: str) -> int:
    with open("counted", "a") as file:
        file.write(f"{word}\\n")
    return len(word)

@flow(name="counting")
async def counting(word: str) -> dict[str, int]:
    letters = await count(word)
    if not os.path.exists("died"):
        open("died", "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return {word: letters}

@flow(name="asking")
async def asking(what: str) -> str:
    answer = await input_required(f"May I {what}?", schema=bool)
    return "yes" if answer else "no"

async def main(name: str) -> None:
    engine = ScriptedEngine(lambda request: "")
    async with open_runtime(Settings(store=sys.argv[2], fit_every=0), engine=engine) as runtime:
        await runtime.run({"counting": counting, "asking": asking}[name].options(run_id="r1"), "go")

if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
"""


@pytest.fixture
def script(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A script with two flows, in the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    return file


def resume(url: str, run: str | None, *, as_json: bool = False) -> None:
    settings = Settings(store=url, fit_every=0)
    for record in asyncio.run(runs_to_resume(url, run)):
        resume_run(record, settings, as_json=as_json, engine=ScriptedEngine(lambda request: ""))


@pytest.mark.parametrize("run", ["r1", "r", None])
def test_a_run_of_a_killed_process_is_resumed_without_repeating_steps(
    script: Path, store_url: str, run: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = subprocess.run([sys.executable, script, "counting", store_url], check=False)
    assert killed.returncode == -signal.SIGKILL
    resume(store_url, run, as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert (document["run"], document["result"], document["in_time"]) == ("r1", {"go": 2}, True)
    assert (script.parent / "counted").read_text() == "go\n"
    resume(store_url, "r1")
    assert json.loads(capsys.readouterr().out) == {"go": 2}


def test_a_question_is_answered_from_another_process(
    script: Path, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, script, "asking", store_url]
    with subprocess.Popen(command) as waiting:
        while "May I go?" not in capsys.readouterr().err:
            exit_code("answer", "r1", "--store", store_url)
        assert exit_code("answer", "r1", "true", "--store", store_url) == 0
        assert waiting.wait(timeout=60) == 0
    capsys.readouterr()
    resume(store_url, "r1")
    assert capsys.readouterr().out == "yes\n"
    assert exit_code("answer", "r1", "true", "--store", store_url) == 2
    assert "needs no answer" in capsys.readouterr().err


def test_a_question_of_a_killed_run_is_answered_before_the_run_is_resumed(
    script: Path, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with subprocess.Popen([sys.executable, script, "asking", store_url]) as waiting:
        while "May I go?" not in capsys.readouterr().err:
            exit_code("answer", "r1", "--store", store_url)
        waiting.kill()
    assert exit_code("answer", "r1", "false", "--store", store_url) == 0
    capsys.readouterr()
    resume(store_url, None)
    assert capsys.readouterr().out == "no\n"


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["resume"], 2, "a run's id, or --orphans"),
        (["resume", "r1", "--orphans"], 2, "a run's id, or --orphans"),
        (["resume", "r1"], 2, "no run 'r1'"),
        (["resume", "--orphans"], 0, "no orphaned runs"),
        (["answer", "r1", "x"], 2, "no run 'r1'"),
    ],
)
@pytest.mark.usefixtures("new_default_store")
def test_a_run_that_cannot_be_resumed_or_answered_is_reported(
    arguments: list[str],
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert exit_code(*arguments) == code
    assert message in " ".join(capsys.readouterr().err.split())

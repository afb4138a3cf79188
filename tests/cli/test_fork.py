"""`orchestrate fork`: another future of a recorded run, from the command line."""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import cli.commands.fork as command
from cli.commands.fork import fork_run
from cli.failures import ExitCode
from orchestrator import Settings, open_runtime
from orchestrator.runtime.flow_loading import load_flow
from orchestrator.runtime.forking import ForkPlan
from orchestrator.testing import ScriptedEngine
from serving.generation import GenerationRequest
from store.session import open_store
from tests.cli.cli_samples import exit_code

SCRIPT = """
from orchestrator import flow, llm, tool

@tool(effects="external")
async def send(text: str) -> str:
    return f"sent {text}"

@flow(name="letters", deadline="60s")
async def letters(topic: str, lines: list[str], number: int = 1, loud: bool = False) -> str:
    plan = await llm(f"plan {topic}")
    text = await llm(f"{plan}; {topic} {','.join(lines)} {number} {loud}")
    return await send(text)
"""


def prompt_of(request: GenerationRequest) -> str:
    assert not isinstance(request.prompt, str)
    return str(request.prompt[-1].content)


@pytest.fixture
def letters(tmp_path: Path, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recorded run `r1` of a script in the working directory; forks use a scripted engine."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "script.py"
    file.write_text(SCRIPT)
    flow = load_flow(f"{file}:letters")

    async def run() -> None:
        settings = Settings(store=store_url, fit_every=0)
        async with open_runtime(settings, engine=ScriptedEngine(prompt_of)) as runtime:
            await runtime.run(flow.options(run_id="r1"), "cats", ["a", "b"])

    asyncio.run(run())

    def on_scripted_engine(plan: ForkPlan, settings: Settings, **options: Any) -> ExitCode:
        engine = ScriptedEngine(prompt_of)
        settings = settings.model_copy(update={"fit_every": 0})
        return fork_run(plan, settings, engine=engine, **options)

    monkeypatch.setattr(command, "fork_run", on_scripted_engine)


def fork(*arguments: str, store_url: str) -> int:
    return exit_code("fork", *arguments, "--store", store_url, "--engine", "http://127.0.0.1:9/v1")


@pytest.mark.usefixtures("letters")
def test_a_run_is_forked_with_other_arguments(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["topic=dogs", "lines=x", "lines=y=z", "number=3", "loud=true"]
    arguments = ["r", "--at", "llm", *changes, "--allow-effects", "--json", "--deadline", "90s"]
    assert fork(*arguments, store_url=store_url) == 0
    captured = capsys.readouterr()
    document = json.loads(captured.out)
    assert document["result"] == "sent plan cats; dogs x,y=z 3 True"
    assert 90 < document["deadline_s"] < 100
    assert "run r1 up to llm: 1 call kept" in captured.err
    fork_id = document["run"]
    assert exit_code("ps", "--store", store_url) == 0
    assert "fork of run r1 at llm" in capsys.readouterr().out
    assert exit_code("show", fork_id, "--store", store_url) == 0
    assert "fork of run r1 at llm" in capsys.readouterr().out
    assert exit_code("ps", "--json", "--store", store_url) == 0
    runs = json.loads(capsys.readouterr().out)["runs"]
    origins = {run["id"]: run["forked_from"] for run in runs}
    assert origins == {fork_id: {"run": "r1", "at": "llm", "outcome_number": 0}, "r1": None}
    assert exit_code("logs", fork_id, "--store", store_url) == 0


@pytest.mark.usefixtures("letters")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["r1", "--at", "nothing"], "no such step; with an outcome: llm, llm#2, send"),
        (["r1", "--at", "l"], "several steps begin or end so: llm, llm#2"),
        (["r1", "--at", "llm#2"], "may happen a second time: send"),
        (["r2", "--at", "llm"], "no run 'r2'"),
        (["r1", "--at", "send", "topics=x"], "flow letters has topic=, lines=, number=, loud="),
        (["r1", "--at", "send", "topic"], "give arguments as NAME=VALUE"),
        (["r1", "--at", "send", "number=two"], "--number two: Input should be a valid integer"),
        (["r1", "--at", "send", "number=2", "number=3"], "number= is given twice"),
        (["r1", "--at", "send", "--deadline", "soon"], "'soon'"),
    ],
)
def test_what_cannot_be_forked_so_is_refused_before_an_engine_starts(
    store_url: str,
    arguments: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(command, "fork_run", None)
    assert fork(*arguments, store_url=store_url) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("letters")
def test_a_fork_at_the_last_step_gives_the_recorded_result(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert fork("r1", "--at", "send", store_url=store_url) == 0
    assert capsys.readouterr().out == "sent plan cats; cats a,b 1 False\n"


@pytest.mark.usefixtures("letters")
def test_a_run_of_another_kind_of_engine_is_forked_only_where_engine_says_so(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    async def began_on_a_server() -> None:
        async with await open_store(store_url) as store, store.transaction() as tx:
            run = await tx.runs.get("r1")
            await tx.runs.resume(run, replace(run, engine="remote", model="some/model"))

    asyncio.run(began_on_a_server())
    assert exit_code("fork", "r1", "--at", "send", "--store", store_url) == 2
    assert "continue there with --engine URL" in " ".join(capsys.readouterr().err.split())


@pytest.mark.usefixtures("letters")
def test_code_outside_of_the_folder_is_not_imported_for_a_fork(
    store_url: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: False)
    assert fork("r1", "--at", "send", store_url=store_url) == 2
    assert "would import" in capsys.readouterr().err
    script = str(tmp_path / "script.py")
    assert fork("r1", "--at", "send", "--allow", script, store_url=store_url) == 0

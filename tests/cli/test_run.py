"""`orchestrate run`: where the result goes, what is refused, and how a run's end is reported."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agents.deep_research.command import PIPELINE
from cli.errors import CannotWrite
from cli.failures import ExitCode, exit_code_of
from cli.work.flow_arguments import parameters_of
from cli.work.run_flow import run_flow
from orchestrator.errors import DeadlineExceeded
from orchestrator.settings import read_settings
from orchestrator.testing import ScriptedEngine
from serving.errors import EngineDied, ModelNotLoaded
from serving.generation import GenerationRequest
from store.records import Status
from tests.cli.cli_samples import answer_by_schema, exit_code, recorded_runs

QUESTION = "How is a deadline divided?"

Research = Callable[..., ExitCode]


@pytest.fixture
def research(corpus: Path) -> Research:
    """Runs deep research over a small corpus on a scripted engine."""

    def run(
        engine: ScriptedEngine | None = None, *, deadline: str = "60s", **options: Any
    ) -> ExitCode:
        typed = {"question": QUESTION, "corpus": str(corpus), "rounds": "1", "width": "2"}
        typed |= {"profile": "large"}
        parameters = {each: typed[each.name] for each in parameters_of(PIPELINE.flow, taken=())}
        settings = options.pop("settings", None) or read_settings()
        engine = engine or ScriptedEngine(answer_by_schema)
        return run_flow(PIPELINE, parameters, settings, deadline=deadline, engine=engine, **options)

    return run


def test_the_report_goes_to_stdout_and_everything_else_to_stderr(
    research: Research, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = research()
    captured = capsys.readouterr()
    (recorded,) = recorded_runs(store_url)
    assert code is ExitCode.DONE
    assert recorded.status is Status.COMPLETED
    assert captured.out.startswith("# ")
    assert "deadlines.md" in captured.out
    assert "indexing" not in captured.out
    assert f"orchestrate show {recorded.id}" in captured.err
    assert "to spare" in captured.err


def test_with_json_the_report_is_one_object(
    research: Research, capsys: pytest.CaptureFixture[str]
) -> None:
    research(as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["in_time"] is True
    assert document["citations"]


def test_the_saved_report_is_the_printed_one(
    research: Research, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "new" / "folder"
    research(out=folder)
    assert (folder / "report.md").read_text() == capsys.readouterr().out
    assert json.loads((folder / "report.json").read_text())["question"] == QUESTION
    assert sorted(file.name for file in folder.iterdir()) == ["report.json", "report.md"]


def test_a_folder_that_cannot_be_written_is_refused_before_the_run(
    research: Research, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("a file, not a folder")
    engine = ScriptedEngine(answer_by_schema)
    with pytest.raises(CannotWrite):
        research(engine, out=tmp_path / "file" / "out")
    assert engine.requests == []


def test_a_model_with_random_weights_is_warned_of(
    research: Research, capsys: pytest.CaptureFixture[str]
) -> None:
    class Random(ScriptedEngine):
        @property
        def info(self):  # type: ignore[no-untyped-def]
            return replace(super().info, random_weights=True)

    research(Random(answer_by_schema))
    errors = capsys.readouterr().err
    assert errors.count("warning: ") == 1
    assert "random" in errors
    assert "meaningless" in errors


def test_verbose_names_the_scheduler_and_the_policy(
    research: Research, capsys: pytest.CaptureFixture[str]
) -> None:
    class Scheduled(ScriptedEngine):
        @property
        def info(self):  # type: ignore[no-untyped-def]
            return replace(super().info, scheduler="SloScheduler", policy="edf")

    settings = read_settings(verbose=True)
    research(Scheduled(answer_by_schema), settings=settings)
    assert "scheduler SloScheduler, policy edf" in capsys.readouterr().err


def test_an_engine_that_dies_fails_the_run_and_the_error_is_recorded(
    research: Research, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def die(request: GenerationRequest) -> str:
        raise EngineDied("out of memory")

    with pytest.raises(EngineDied) as died:
        research(ScriptedEngine(die))
    (recorded,) = recorded_runs(store_url)
    assert exit_code_of(died.value) is ExitCode.ENGINE
    assert recorded.error_type == "EngineDied"
    assert f"orchestrate show {recorded.id}" in capsys.readouterr().err


def test_an_engine_that_cannot_start_leaves_no_run(research: Research, store_url: str) -> None:
    class Broken(ScriptedEngine):
        async def start(self) -> None:
            raise ModelNotLoaded("random", "no memory")

    with pytest.raises(ModelNotLoaded):
        research(Broken(answer_by_schema))
    assert recorded_runs(store_url) == []


def test_a_missed_deadline_has_its_own_exit_code(research: Research, store_url: str) -> None:
    def slow(request: GenerationRequest) -> str:
        time.sleep(0.05)  # blocks the event loop: the run may end late or raise DeadlineExceeded
        return answer_by_schema(request)

    try:
        code = research(ScriptedEngine(slow), deadline="1ms")
    except DeadlineExceeded as error:
        code = exit_code_of(error)
    assert code is ExitCode.DEADLINE


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--deadline", "0"], 2, "above 0"),
        (["--deadline", "soon"], 2, "60s"),
        (["--policy", "nonsense"], 2, "fcfs"),
        (["--engine", "nonsense"], 2, "http://"),
        (["--rounds", "0"], 2, "rounds"),
        (["--corpus", "/nowhere"], 2, "/nowhere"),
        (["--model", "/nowhere"], 4, "config.json"),
        (["--store", "sqlite:////proc/nowhere/runs.db"], 5, "store"),
        (["--store", "mysql://localhost/runs"], 5, "neither sqlite nor postgresql"),
    ],
)
def test_a_failure_has_its_documented_exit_code_and_says_what_to_do(
    corpus: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    message: str,
) -> None:
    command = ["run", "deep-research", QUESTION, "--corpus", str(corpus), *arguments]
    assert exit_code(*command) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert message in captured.err
    assert "Traceback" not in captured.err


def test_an_empty_question_and_an_empty_corpus_are_bad_input(tmp_path: Path, corpus: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    assert exit_code("run", "deep-research", " ", "--corpus", str(corpus)) == 2
    assert exit_code("run", "deep-research", QUESTION, "--corpus", str(empty)) == 2


def test_a_remote_engine_out_of_reach_is_a_failure_of_the_engine(
    corpus: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["run", "deep-research", QUESTION, "--corpus", str(corpus)]
    assert exit_code(*command, "--engine", "http://127.0.0.1:9/v1") == 4
    assert "127.0.0.1:9" in capsys.readouterr().err


def test_options_override_the_environment(
    corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATE_POLICY", "nonsense")
    command = ["run", "deep-research", QUESTION, "--corpus", str(corpus), "--model", "/nowhere"]
    assert exit_code(*command) == 2
    assert exit_code(*command, "--policy", "edf") == 4

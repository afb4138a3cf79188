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
    """Deep research over a small corpus, on an engine that answers by script."""

    def run(
        engine: ScriptedEngine | None = None, *, deadline: str = "60s", **options: Any
    ) -> ExitCode:
        typed = {"question": QUESTION, "corpus": str(corpus), "rounds": "1", "width": "2"}
        parameters = {each: typed[each.name] for each in parameters_of(PIPELINE.flow, taken=())}
        settings = options.pop("settings", None) or read_settings()
        engine = engine or ScriptedEngine(answer_by_schema)
        return run_flow(PIPELINE, parameters, settings, deadline=deadline, engine=engine, **options)

    return run


def test_the_report_goes_to_stdout_and_all_else_to_stderr(
    research: Research, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = research()
    told = capsys.readouterr()
    (recorded,) = recorded_runs(store_url)
    assert code is ExitCode.DONE
    assert recorded.status is Status.COMPLETED
    assert told.out.startswith("# ")
    assert "deadlines.md" in told.out
    assert "indexing" not in told.out
    assert f"orchestrate show {recorded.id}" in told.err
    assert "to spare" in told.err


def test_the_report_as_json_is_one_object(
    research: Research, capsys: pytest.CaptureFixture[str]
) -> None:
    research(as_json=True)
    document = json.loads(capsys.readouterr().out)
    assert document["in_time"] is True
    assert document["citations"]


def test_the_report_is_saved_as_it_was_printed(
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
    (tmp_path / "file").write_text("in the way")
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
    told = capsys.readouterr().err
    assert told.count("warning: ") == 1
    assert "random" in told
    assert "meaningless" in told


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


def test_an_engine_that_dies_ends_the_run_and_the_record_says_so(
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
            raise ModelNotLoaded("demo", "no memory")

    with pytest.raises(ModelNotLoaded):
        research(Broken(answer_by_schema))
    assert recorded_runs(store_url) == []


def test_a_deadline_that_passes_has_an_exit_code_of_its_own(
    research: Research, store_url: str
) -> None:
    def slow(request: GenerationRequest) -> str:
        time.sleep(0.05)  # holds the event loop up: a run may then end late, or not at all
        return answer_by_schema(request)

    try:
        code = research(ScriptedEngine(slow), deadline="1ms")
    except DeadlineExceeded as error:
        code = exit_code_of(error)
    assert code is ExitCode.DEADLINE


@pytest.mark.parametrize(
    ("arguments", "code", "word"),
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
    word: str,
) -> None:
    command = ["run", "deep-research", QUESTION, "--corpus", str(corpus), *arguments]
    assert exit_code(*command) == code
    told = capsys.readouterr()
    assert told.out == ""
    assert word in told.err
    assert "Traceback" not in told.err


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


def test_options_win_over_the_environment(
    corpus: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ORCHESTRATE_POLICY", "nonsense")
    command = ["run", "deep-research", QUESTION, "--corpus", str(corpus), "--model", "/nowhere"]
    assert exit_code(*command) == 2
    assert exit_code(*command, "--policy", "edf") == 4

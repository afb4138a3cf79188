"""`orchestrate resume`: the engine and the model with which a run continues, or that it needs none.

These tests may not import vLLM.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

import cli.commands.resume as command
from cli.commands.resume import other_engine, with_recorded_model
from orchestrator import Settings, flow, open_runtime
from orchestrator.testing import ScriptedEngine
from serving.generation import EngineInfo
from store.records import RunRecord, Status
from tests.cli.cli_samples import a_run, exit_code, fill_store

URL = "http://127.0.0.1:9/v1"


@flow(name="greeting")
async def greeting(name: str) -> str:
    return f"hello {name}"


class OtherModel(ScriptedEngine):
    @property
    def info(self) -> EngineInfo:
        return replace(super().info, model="other")


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Settings]]:
    """The runs that the command would resume, with their settings."""
    runs: list[tuple[str, Settings]] = []

    def resume_run(record: RunRecord, settings: Settings, **_: object) -> None:
        runs.append((record.id, settings))

    monkeypatch.setattr(command, "resume_run", resume_run)
    return runs


def failed_on(engine: str, *, run_id: str = "r1", status: Status = Status.FAILED) -> RunRecord:
    return a_run(run_id, engine=engine, model="recorded/model", status=status)


@pytest.mark.parametrize("engine", ["embedded", URL, "no such engine"])
def test_the_result_of_a_completed_run_is_printed_without_an_engine(
    store_url: str, capsys: pytest.CaptureFixture[str], engine: str
) -> None:
    async def run() -> None:
        settings = Settings(store=store_url, fit_every=0)
        async with open_runtime(settings, engine=ScriptedEngine("")) as runtime:
            await runtime.run(greeting.options(run_id="r1"), "you")

    asyncio.run(run())
    capsys.readouterr()
    assert exit_code("resume", "r1", "--engine", engine) == 0
    assert capsys.readouterr().out == "hello you\n"
    assert exit_code("resume", "r1", "--json") == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["result"], document["model"]) == ("hello you", ScriptedEngine("").info.model)


@pytest.mark.parametrize(
    ("recorded", "selected", "advice"),
    [("remote", "embedded", "--engine URL"), ("embedded", URL, "--engine embedded")],
)
def test_a_run_is_not_resumed_on_another_kind_of_engine_unless_it_is_named(
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    resumed: list[tuple[str, Settings]],
    recorded: str,
    selected: str,
    advice: str,
) -> None:
    fill_store(store_url, [failed_on(recorded)])
    monkeypatch.setenv("ORCHESTRATE_ENGINE", selected)
    assert exit_code("resume", "r1") == 2
    error = " ".join(capsys.readouterr().err.split())
    assert f"began on engine {recorded} with model recorded/model" in error
    assert advice in error
    assert f"--engine {selected}" in error
    assert resumed == []
    assert exit_code("resume", "r1", "--engine", selected) == 0
    assert [settings.engine for _, settings in resumed] == [selected]


@pytest.mark.parametrize(("recorded", "selected"), [("embedded", "embedded"), ("remote", URL)])
def test_a_run_continues_with_its_model_unless_another_is_named(
    store_url: str, resumed: list[tuple[str, Settings]], recorded: str, selected: str
) -> None:
    fill_store(store_url, [failed_on(recorded)])
    assert exit_code("resume", "r1", "--engine", selected) == 0
    assert exit_code("resume", "r1", "--engine", selected, "--model", "other") == 0
    assert [settings.model for _, settings in resumed] == ["recorded/model", "other"]


def test_orphans_of_another_engine_are_left_out_and_reported(
    store_url: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    resumed: list[tuple[str, Settings]],
) -> None:
    remote = failed_on("remote", run_id="r1", status=Status.RUNNING)
    orphans = [remote, replace(remote, id="r2", engine="embedded")]
    fill_store(store_url, [])

    async def all_orphans(*_: object) -> list[RunRecord]:
        return orphans

    monkeypatch.setattr(command, "runs_to_resume", all_orphans)
    assert exit_code("resume", "--orphans") == 2
    assert [run_id for run_id, _ in resumed] == ["r2"]
    error = " ".join(capsys.readouterr().err.split())
    assert "run r1 began on engine remote" in error
    assert "1 of 2" in error


def test_a_run_of_an_unknown_engine_or_model_is_not_refused() -> None:
    unknown = a_run(engine="", model="", status=Status.FAILED)
    settings = Settings()
    assert other_engine(unknown, settings) is None
    assert with_recorded_model(unknown, settings) is settings


async def test_a_resume_on_another_engine_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    works = False

    @flow(name="sometimes")
    async def sometimes() -> str:
        if not works:
            raise ValueError("not yet")
        return "done"

    settings = Settings(store=f"sqlite:///{tmp_path / 'logged.db'}", fit_every=0)
    engine = ScriptedEngine("")
    async with open_runtime(settings, engine=engine) as runtime:
        with pytest.raises(ValueError, match="not yet"):
            await runtime.run(sometimes.options(run_id="r1"))
        with pytest.raises(ValueError, match="not yet"):
            await runtime.resume("r1", sometimes)
    assert "continues on engine" not in caplog.text
    works = True
    async with open_runtime(settings, engine=OtherModel("")) as runtime:
        assert (await runtime.resume("r1", sometimes)).value == "done"
    assert "run r1 began on engine scripted with model" in caplog.text
    assert "continues on engine scripted with model other" in caplog.text

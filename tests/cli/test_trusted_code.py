"""`orchestrate resume` imports the code that a store names only if it is trusted."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
import typer

import cli.commands.resume as command
from agents.deep_research.pipeline import deep_research
from cli.work import trusted_code
from cli.work.trusted_code import is_allowed
from orchestrator.runtime.flow_loading import reference_of
from store.records import RunRecord, Status
from tests.cli.cli_samples import a_run, exit_code, fill_store


@pytest.fixture
def resumed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The runs that the command would resume."""
    ids: list[str] = []
    monkeypatch.setattr(command, "resume_run", lambda record, *_, **__: ids.append(record.id))
    return ids


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder."""
    folder = tmp_path / "project"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def interrupted(run_id: str, entry: str | None) -> RunRecord:
    return a_run(run_id, entry=entry, engine="", status=Status.FAILED)


@pytest.mark.parametrize(
    ("entry", "allowed", "expected"),
    [
        ("/a/flows.py:f", "/a/flows.py", True),
        ("/a/flows.py:f", "/a/flows.py:f", True),
        ("/a/flows.py:f", "/a", True),
        ("/a/flows.py:f", "/a/flows.py:g", False),
        ("/a/flows.py:f", "/a/fl", False),
        ("/a/../b/flows.py:f", "/a", False),
        ("mine.flows:f", "mine", True),
        ("mine.flows:f", "mine.flows:f", True),
        ("mines.flows:f", "mine", False),
    ],
)
def test_code_is_allowed_by_its_file_folder_module_or_name(
    entry: str, allowed: str, expected: bool
) -> None:
    assert is_allowed(entry, [allowed]) is expected


def test_a_file_outside_of_the_current_folder_is_imported_only_if_allowed(
    here: Path,
    store_url: str,
    resumed: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    outside = here.parent / "evil.py"
    inside = interrupted("inside", f"{here / 'mine.py'}:f")
    fill_store(store_url, [interrupted("outside", f"{outside}:f"), inside])
    assert exit_code("resume", "inside") == 0
    assert exit_code("resume", "outside") == 2
    assert f"--allow {outside}" in " ".join(capsys.readouterr().err.split())
    assert exit_code("resume", "outside", "--allow", str(outside)) == 0
    assert resumed == ["inside", "outside"]
    monkeypatch.setattr(trusted_code.sys.stdin, "isatty", lambda: True)
    for answer, code in ((False, 2), (True, 0)):
        monkeypatch.setattr(typer, "confirm", lambda *_, answer=answer, **__: answer)
        assert exit_code("resume", "outside") == code
    assert resumed == ["inside", "outside", "outside"]


def test_orphans_import_only_pipelines_and_what_is_allowed(
    here: Path,
    store_url: str,
    resumed: list[str],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    orphans = [
        interrupted("inside", f"{here / 'mine.py'}:f"),
        interrupted("module", "mine:f"),
        interrupted("pipeline", reference_of(deep_research.body)),
        interrupted("without code", None),
    ]
    fill_store(store_url, [])

    async def all_orphans(*_: object) -> list[RunRecord]:
        await asyncio.sleep(0)
        return orphans

    monkeypatch.setattr(command, "runs_to_resume", all_orphans)
    assert exit_code("resume", "--orphans") == 2
    assert resumed == ["pipeline", "without code"]
    assert "2 of 4" in capsys.readouterr().err
    resumed.clear()
    allowed = ("--allow", "mine.py", "--allow", "mine")
    assert exit_code("resume", "--orphans", *allowed) == 0
    assert resumed == ["inside", "module", "pipeline", "without code"]

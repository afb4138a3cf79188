"""`orchestrate apply`: what is shown, asked, written, kept and brought back."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from cli.terminal import confirming
from store.session import open_store
from store.state_records import CheckpointRecord
from tests.cli.cli_samples import exit_code
from tests.cli.workspace_runs import RUN, edit, edit_and_apply, new_base, record_run

PLAN = """\
replace  a.txt
add      d
add      d/x
add      new file
delete   old
mode     tool  0644 -> 0755
"""


@pytest.fixture
def base(tmp_path: Path, store_url: str, subprocesses: None) -> Path:
    """The folder of a recorded run of `edit`."""
    folder = new_base(tmp_path)
    record_run(store_url, edit, str(folder))
    return folder


def files_in(folder: Path) -> Mapping[str, tuple[int, str]]:
    files = [each for each in sorted(folder.rglob("*")) if each.is_file()]
    return {
        str(file.relative_to(folder)): (file.stat().st_mode & 0o777, file.read_text())
        for file in files
    }


def checkpoints(url: str) -> list[CheckpointRecord]:
    async def read() -> list[CheckpointRecord]:
        async with await open_store(url) as store, store.reading() as tx:
            assert await tx.states.recount() == []
            return list(await tx.states.checkpoints_of_run(RUN))

    return asyncio.run(read())


def test_an_apply_writes_the_changes_and_the_command_that_it_names_takes_them_back(
    base: Path, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_in(base)
    assert exit_code("apply", "3f2a", "--yes") == 0
    captured = capsys.readouterr()
    assert captured.out == PLAN
    assert files_in(base)["a.txt"] == (0o644, "one\n2\nthree\n")
    assert files_in(base).keys() == {"a.txt", "d/x", "new file", "tool"}
    *_, state = captured.err.split()
    kept = checkpoints(store_url)[-1]
    assert (kept.name, kept.workspace, kept.state[:12]) == ("before apply", "base", state)
    assert exit_code("apply", state, "--yes") == 0
    assert files_in(base) == before
    *_, redo = capsys.readouterr().err.split()
    assert exit_code("apply", redo, "--yes") == 0
    assert len(files_in(base)) == 4
    names = [each.name for each in checkpoints(store_url)]
    assert names == ["start", "half way", *["before apply"] * 3]


def test_a_dry_run_shows_the_plan_and_writes_nothing(
    base: Path, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_in(base)
    assert exit_code("apply", "3f2a", "--dry-run") == 0
    assert capsys.readouterr().out == PLAN
    assert exit_code("apply", "3f2a", "--dry-run", "--json") == 0
    planned = json.loads(capsys.readouterr().out)
    assert (planned["is_applied"], planned["former"]) == (False, None)
    assert (planned["added"], planned["deleted"]) == (["d", "d/x", "new file"], ["old"])
    assert files_in(base) == before
    assert len(checkpoints(store_url)) == 2


def test_without_a_terminal_nothing_is_written_unless_yes_is_given(
    base: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    before = files_in(base)
    with Path(os.devnull).open() as null:
        monkeypatch.setattr(confirming.sys, "stdin", null)
        assert exit_code("apply", "3f2a") == 2
    assert "give --yes" in capsys.readouterr().err
    assert files_in(base) == before


@pytest.mark.parametrize(("answer", "code"), [(False, 1), (True, 0)])
def test_on_a_terminal_it_asks_and_does_as_it_is_told(
    base: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: bool,
    code: int,
) -> None:
    asked: list[str] = []

    def answered(question: str, *, err: bool) -> bool:
        asked.append(question)
        return answer

    monkeypatch.setattr(confirming.sys.stdin, "isatty", lambda: True)
    monkeypatch.setattr(confirming.typer, "confirm", answered)
    assert exit_code("apply", "3f2a") == code
    assert asked == [f"Write this to {base}?"]
    assert (base / "new file").exists() is answer


def test_what_the_user_has_changed_meanwhile_is_not_overwritten(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (base / "a.txt").write_text("the user's\n")
    before = files_in(base)
    assert exit_code("apply", "3f2a", "--yes") == 1
    assert "has changed since the workspace began" in " ".join(capsys.readouterr().err.split())
    assert files_in(base) == before


def test_what_has_changed_elsewhere_is_named_and_left(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (base / "mine").write_text("the user's\n")
    assert exit_code("apply", "3f2a@half way", "--yes") == 0
    captured = capsys.readouterr()
    assert captured.out == "replace  a.txt\n"
    assert "meanwhile, and left as it is: mine" in captured.err
    assert (base / "mine").exists()
    assert exit_code("apply", "3f2a@half way", "--yes") == 0
    assert "nothing to write" in capsys.readouterr().err


def test_what_a_flow_has_applied_itself_is_taken_back_in_the_same_way(
    tmp_path: Path, store_url: str, subprocesses: None
) -> None:
    base = new_base(tmp_path)
    before = files_in(base)
    record_run(store_url, edit_and_apply, str(base))
    assert files_in(base) != before
    assert [each.name for each in checkpoints(store_url)] == ["before apply"]
    assert exit_code("apply", "3f2a@before apply", "--yes") == 0
    assert files_in(base) == before

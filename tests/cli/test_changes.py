"""`orchestrate diff` and `orchestrate changeset`, of runs in real workspaces."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.cli_samples import a_run, exit_code, fill_store
from tests.cli.state_samples import exploration, fill_states, state_id
from tests.cli.workspace_runs import RUN, edit, new_base, nothing, record_run

STAT = """\
M a.txt     +1 -1
A d         folder
A d/x       +1
A new file  +1
D old       -1
M tool      permissions 0644 -> 0755
6 paths: 3 added, 1 changed, 1 deleted, 1 with other permissions; 3 lines added, 2 removed
"""


@pytest.fixture
def base(tmp_path: Path, store_url: str, subprocesses: None) -> Path:
    """The folder of a recorded run of `edit`."""
    folder = new_base(tmp_path)
    record_run(store_url, edit, str(folder))
    return folder


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    assert exit_code(*arguments) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(printed(capsys, *arguments, "--json"))
    return parsed


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert exit_code(*arguments) == 2
    return " ".join(capsys.readouterr().err.split())


def test_the_diff_of_a_run_against_its_folder_is_a_patch_that_git_applies(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patch = printed(capsys, "diff", "3f2a")
    subprocess.run(["git", "apply", "--check", "-"], input=patch, text=True, cwd=base, check=True)
    subprocess.run(["git", "apply", "-"], input=patch, text=True, cwd=base, check=True)
    assert (base / "a.txt").read_text() == "one\n2\nthree\n"
    assert (base / "new file").read_text() == "new"
    assert (base / "d" / "x").read_text() == "hi\n"
    assert (base / "tool").stat().st_mode & 0o777 == 0o755
    assert not (base / "old").exists()


def test_states_are_named_by_run_checkpoint_step_or_their_own_ids(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert printed(capsys, "diff", "3f2a", "--stat") == STAT
    assert printed(capsys, "diff", "@", "--stat") == STAT
    assert printed(capsys, "diff", "3f2a@start", RUN, "--stat") == STAT
    assert printed(capsys, "diff", "3f2a@half way", "--stat").startswith("M a.txt  +1 -1\n1 path:")
    assert printed(capsys, "diff", "@ws.write", "--stat").startswith("M a.txt  +1 -1\n1 path:")
    last, first = (document(capsys, "diff", each)["after"] for each in ("@", "@start"))
    assert printed(capsys, "diff", last[:6], "--stat") == STAT
    assert printed(capsys, "diff", first, last[:20], "--stat") == STAT
    assert printed(capsys, "diff", last, "@", "--stat") == "no differences\n"
    assert printed(capsys, "diff", last, "@") == ""


def test_a_diff_backwards_shows_the_opposite(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    forth, back = (
        document(capsys, "diff", *ends)["counts"] for ends in (("@start", "@"), ("@", "@start"))
    )
    assert (forth["added"], forth["deleted"]) == (3, 1) == (back["deleted"], back["added"])


def test_one_of_several_workspaces_is_shown_and_the_others_are_named(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code("diff", "3f2a", "--stat") == 0
    captured = capsys.readouterr()
    assert captured.err == f"workspace base of run {RUN}; with --workspace also: base.1\n"
    assert exit_code("diff", "3f2a", "--stat", "--workspace", "base.1") == 0
    captured = capsys.readouterr()
    assert "fork.txt" in captured.out
    assert captured.err == ""
    assert "it has base, base.1" in refused(capsys, "diff", "@", "--workspace", "else")


def test_a_diff_says_if_the_folder_has_changed_meanwhile(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (base / "old").write_text("the user's\n")
    assert exit_code("diff", "3f2a", "--stat") == 0
    captured = capsys.readouterr()
    assert "D old" in captured.out
    assert f"{base} has changed since the workspace began: old" in captured.err.replace("\n", " ")


def test_a_diff_of_a_folder_that_is_gone_is_bad_input(
    base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base.rename(base.with_name("elsewhere"))
    assert "cannot be read: No such file" in refused(capsys, "diff", "3f2a", "--stat")


def test_a_changeset_is_printed_and_saved_in_both_forms(
    base: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    diff = printed(capsys, "diff", "3f2a")
    assert printed(capsys, "changeset", "3f2a") == f"{STAT}\n{diff}"
    patch = tmp_path / "changes.patch"
    assert printed(capsys, "changeset", "3f2a", "--output", str(patch)) == STAT
    assert patch.read_text() == diff
    shown = document(capsys, "changeset", "3f2a")
    assert (shown["base"], shown["before"], shown["diff"]) == (str(base), None, diff)
    changed = {each["path"]: (each["kind"], each["mode"]) for each in shown["changes"]}
    assert changed["tool"] == ("mode", "0755")
    assert changed["old"] == ("deleted", "0644")
    assert printed(capsys, "changeset", "3f2a", "--json", "--output", str(patch)) == ""
    assert json.loads(patch.read_text()) == shown
    assert "cannot write to" in refused(
        capsys, "changeset", "3f2a", "--output", str(tmp_path / "missing" / "file")
    )


def test_names_and_bytes_that_are_not_utf_8_are_printed_as_they_are(
    tmp_path: Path, store_url: str, capfdbinary: pytest.CaptureFixture[bytes], subprocesses: None
) -> None:
    base = new_base(tmp_path)
    (base / "a.txt").write_bytes(b"gr\xfcn\n")
    record_run(store_url, edit, str(base))
    assert exit_code("diff", "3f2a@half way") == 0
    assert b"\n-gr\xfcn\n+one\n" in capfdbinary.readouterr().out
    assert exit_code("diff", "3f2a@half way", "--json") == 0
    assert "-gr\udcfcn\n" in json.loads(capfdbinary.readouterr().out)["diff"]


@pytest.mark.parametrize(
    ("named", "says"),
    [
        ("3f2a@nowhere", "are tests pass, start; steps are workspace, checkpoint, fork"),
        ("abc", "give at least 6 characters"),
        ("abcdef12", "no run's id and no state's id begins with 'abcdef12'"),
        ("4@start", "no run '4' in this store"),
        ("", "there are no states at"),
        ("3f2a@tell", "there are no states at"),
        ("82f10d2f", "there are no states at"),
    ],
)
def test_a_state_that_is_not_there_is_bad_input_that_says_what_is(
    store_url: str, named: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert state_id("start").startswith("82f10d2f")
    fill_states(store_url, exploration())
    assert says in refused(capsys, "diff", named)


def test_what_is_the_beginning_of_a_run_and_a_state_is_ambiguous(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    fill_states(store_url, exploration())
    state = state_id("start")
    fill_store(store_url, [a_run(f"{state[:8]}ffff")])
    message = refused(capsys, "diff", state[:8])
    assert f"run {state[:8]}ffff, state {state}" in message
    assert "there are no states at" in refused(capsys, "diff", state)
    assert "no workspace, so no states" in refused(capsys, "diff", f"{state[:8]}ffff")


def test_a_run_without_a_workspace_has_no_state(
    store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    record_run(store_url, nothing)
    assert f"run {RUN} has no workspace, so no states" in refused(capsys, "changeset", "3f2a")


def test_states_of_different_folders_are_not_compared(
    base: Path, tmp_path: Path, store_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other").mkdir()
    record_run(store_url, edit, str(new_base(tmp_path / "other")), run_id="77aa")
    assert "only states of one folder can be compared" in refused(capsys, "diff", "3f2a", "77aa")
    assert "two forms of the same output" in refused(capsys, "diff", "3f2a", "--stat", "--json")

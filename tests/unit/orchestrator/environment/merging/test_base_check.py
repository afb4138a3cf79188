"""Which folders are refused as a base, and why."""

from __future__ import annotations

import os
import pwd
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from orchestrator.environment.errors import BaseRefused
from orchestrator.environment.merging.base_check import checked_base
from tests.unit.orchestrator.environment.merging.apply_samples import as_ordinary_user

HERE = "tests.unit.orchestrator.environment.merging.test_base_check"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path / "home/me"))
    for name in ("home/me/repo", "managed"):
        (tmp_path / name).mkdir(parents=True)
    return tmp_path


def refused(base: str | Path, managed: Path, store: Path | None = None) -> str:
    with pytest.raises(BaseRefused) as raised:
        checked_base(base, managed, store)
    return str(raised.value)


def test_a_folder_of_its_own_is_taken_by_its_real_path(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo, managed = folder / "home/me/repo", folder / "managed"
    monkeypatch.chdir(repo.parent)
    (folder / "also home").symlink_to(folder / "home")
    for given in (repo, "~/repo", "repo", "../me/repo/", folder / "also home/me/repo"):
        assert checked_base(given, managed, folder / "runs.db", for_writing=True) == repo


def test_a_folder_that_holds_too_much_is_refused(folder: Path) -> None:
    managed = folder / "managed"
    assert "whole file system" in refused("/", managed)
    assert "home folder" in refused("~", managed)
    assert "home folder" in refused(folder / "home", managed)
    home = pwd.getpwuid(os.getuid()).pw_dir  # also if HOME says something else
    assert "home folder" in refused(home, managed)


def test_a_folder_that_holds_our_own_files_is_refused(folder: Path) -> None:
    repo = folder / "home/me/repo"
    (folder / "link").symlink_to(repo)
    assert "the files of all workspaces lie in it" in refused(repo, repo / ".orchestrate")
    assert "the files of all workspaces lie in it" in refused(repo, folder / "link/.orchestrate")
    assert "where the files of all workspaces are" in refused(repo, folder / "home/me")
    assert "ORCHESTRATE_STORE" in refused(repo, folder / "managed", repo / "data/runs.db")
    assert "ORCHESTRATE_STORE" in refused(repo, folder / "managed", folder / "link/runs.db")


def test_what_is_no_folder_is_refused(folder: Path) -> None:
    managed = folder / "managed"
    (folder / "file").touch()
    assert "no folder is named" in refused("", managed)
    assert "null byte" in refused("a\0b", managed)
    (folder / "link").symlink_to("home/me/repo")
    assert "No such file" in refused(folder / "missing", managed)
    assert "no folder" in refused(folder / "file", managed)
    assert f"name the folder itself, '{folder}/home/me/repo'" in refused(folder / "link", managed)
    assert f"'{folder}/link'" in refused(f"{folder}/link/", managed)


def refuse_what_is_locked(folder: Path) -> None:
    base, managed = folder / "home/me/repo", folder / "managed"
    base.chmod(0o000)
    assert "you may not read it" in refused(base, managed)
    base.chmod(0o555)
    assert checked_base(base, managed) == base
    with pytest.raises(BaseRefused, match="you may not write it"):
        checked_base(base, managed, for_writing=True)
    base.chmod(0o755)


@pytest.mark.usefixtures("subprocesses")
def test_a_folder_that_cannot_be_read_or_written_is_refused(folder: Path) -> None:
    as_ordinary_user(f"{HERE}:refuse_what_is_locked", folder)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives folders away")
def test_another_users_folder_is_read_but_not_written(folder: Path) -> None:
    managed = folder / "managed"
    with TemporaryDirectory() as repo:
        check_the_owner(Path(repo), managed)


def check_the_owner(repo: Path, managed: Path) -> None:
    os.chown(repo, 1234, 1234)
    repo.chmod(0o777)
    assert checked_base(repo, managed, for_writing=True) == repo  # root may
    os.seteuid(1235)
    try:
        for above in (repo, *repo.parents):
            if not os.access(above, os.X_OK, effective_ids=True):
                pytest.skip("the temporary folder is private")
        assert checked_base(repo, managed) == repo
        with pytest.raises(BaseRefused, match="belongs to 1234"):
            checked_base(repo, managed, for_writing=True)
    finally:
        os.seteuid(0)

"""A user's file with an import name of ours: a clear error, or no effect at all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT


def imported(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """`import orchestrator` in a folder, where Python looks there first as it does for scripts."""
    command = [sys.executable, *flags, "-c", "import orchestrator; print('imported')"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("hiding", ["store.py", "serving/__init__.py"])
def test_the_error_names_the_file_that_hides_a_package_and_what_to_do(
    tmp_path: Path, hiding: str
) -> None:
    (tmp_path / hiding).parent.mkdir(exist_ok=True)
    (tmp_path / hiding).write_text("")
    done = imported(tmp_path)
    said = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert said.startswith("orchestrator.errors.PackageShadowed: ")
    for part in (str(tmp_path / hiding), "rename", "python -P", "agents, cli, orchestrator"):
        assert part in said
    assert imported(tmp_path, "-P").stdout == "imported\n"


@pytest.mark.parametrize("harmless", ["agents.py", "cli/__init__.py", "store/readme.txt"])
def test_a_name_that_orchestrator_does_not_import_disturbs_nothing(
    tmp_path: Path, harmless: str
) -> None:
    (tmp_path / harmless).parent.mkdir(exist_ok=True)
    (tmp_path / harmless).write_text("")
    assert imported(tmp_path).stdout == "imported\n"

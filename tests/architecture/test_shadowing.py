"""A user's file with the name of one of our packages causes a clear error or has no effect."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from orchestrator import own_packages
from serving import references
from tests.places import ROOT

pytestmark = pytest.mark.usefixtures("subprocesses")


def import_orchestrator(folder: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    """Run `import orchestrator` with the folder first on the path, as for a script in it."""
    command = [sys.executable, *flags, "-c", "import orchestrator; print('imported')"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("hiding", ["store.py", "serving/__init__.py"])
def test_the_error_names_the_file_that_hides_a_package_and_the_fix(
    tmp_path: Path, hiding: str
) -> None:
    (tmp_path / hiding).parent.mkdir(exist_ok=True)
    (tmp_path / hiding).write_text("")
    process = import_orchestrator(tmp_path)
    error = process.stderr.splitlines()[-1]
    assert process.returncode == 1
    assert error.startswith("orchestrator.errors.PackageShadowed: ")
    for part in (str(tmp_path / hiding), "rename", "python -P", "agents, cli, orchestrator"):
        assert part in error
    assert import_orchestrator(tmp_path, "-P").stdout == "imported\n"


@pytest.mark.parametrize("harmless", ["agents.py", "cli/__init__.py", "store/readme.txt"])
def test_hiding_a_package_that_orchestrator_does_not_import_has_no_effect(
    tmp_path: Path, harmless: str
) -> None:
    (tmp_path / harmless).parent.mkdir(exist_ok=True)
    (tmp_path / harmless).write_text("")
    assert import_orchestrator(tmp_path).stdout == "imported\n"


def test_a_file_in_a_folder_of_the_checkout_hides_a_package_as_any_other() -> None:
    with tempfile.TemporaryDirectory(dir=ROOT / "tests") as folder:
        (Path(folder) / "store.py").write_text("")
        assert "PackageShadowed" in import_orchestrator(Path(folder)).stderr


def test_both_checks_know_the_same_names() -> None:
    assert sorted(own_packages.RESERVED) == sorted(references.RESERVED_NAMES)

from __future__ import annotations

import subprocess
import sys
from collections import Counter

import pytest

from tests.places import ROOT

PACKAGES = ("agents", "cli", "orchestrator", "patterns", "serving", "store")
MAX_MODULES = 22


@pytest.mark.usefixtures("subprocesses")
def test_imports_respect_the_layers() -> None:
    script = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    process = subprocess.run(
        [sys.executable, "-c", script, "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stdout + process.stderr


def test_no_folder_has_more_than_22_modules() -> None:
    modules = Counter(
        path.parent
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    )
    assert {str(folder): count for folder, count in modules.items() if count > MAX_MODULES} == {}

from __future__ import annotations

import subprocess
import sys
from collections import Counter

from tests.places import ROOT

PACKAGES = ("agents", "cli", "orchestrator", "patterns", "serving", "store")
MOST_MODULES = 22


def test_arrows_only_point_down() -> None:
    script = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_folders_list_of_files_is_short_enough_to_be_its_table_of_contents() -> None:
    modules = Counter(
        path.parent
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        if path.name != "__init__.py"
    )
    assert {str(folder): count for folder, count in modules.items() if count > MOST_MODULES} == {}

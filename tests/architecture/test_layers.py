from __future__ import annotations

import subprocess
import sys

from tests.places import ROOT


def test_arrows_only_point_down() -> None:
    script = "from importlinter.cli import lint_imports_command; lint_imports_command()"
    done = subprocess.run(
        [sys.executable, "-c", script, "--no-cache"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr

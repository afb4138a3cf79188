"""Runs a module of these tests in a process of its own, which may start an engine or crash."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.places import ROOT


def json_of_module(module: str, *arguments: str, limit_s: float = 300) -> dict[str, Any]:
    """The JSON object on the last line that `tests.engine.MODULE` prints."""
    done = subprocess.run(
        [sys.executable, "-m", f"tests.engine.{module}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=limit_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return result

"""Flows without an open runtime: vLLM starts once for a loop, makes way, and ends in silence."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT


@pytest.mark.usefixtures("subprocesses")
@pytest.mark.slow
def test_the_engine_stays_until_the_loop_ends_may_be_closed_and_ends_without_noise(
    tmp_path: Path,
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.engine.kept_engine"],
        cwd=ROOT,
        env=os.environ | {"ORCHESTRATE_STORE": f"sqlite:///{tmp_path / 'runs.db'}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "the same engine": True,
        "streamed": True,
        "left": [True, True],
        "read until cancelled": [True, True],
        "after the loop": 0,
        "makes way for another loop": True,
        "busy while in use": True,
        "makes way for open_runtime": 1,
        "other settings": 1,
        "after the second loop": 0,
        "after a loop that was just closed": 1,
        "after the next loop": 0,
    }
    caveat = "has random weights: its text is meaningless"
    assert [line for line in done.stderr.splitlines() if caveat not in line] == []

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from store.records import Status
from tests.cli.cli_samples import recorded_runs
from tests.places import ROOT

pytestmark = pytest.mark.usefixtures("subprocesses")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_is_recorded_as_cancelled(
    corpus: Path, store_url: str, number: signal.Signals
) -> None:
    command = [sys.executable, str(Path(__file__).with_name("slow_run.py")), str(corpus)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if "stage 0" in line:  # its first call is running
                process.send_signal(number)
                break
        _, rest = process.communicate(timeout=60)
    (run,) = recorded_runs(store_url)
    assert process.returncode == 128 + number, "".join([*lines, rest])
    assert run.status is Status.CANCELLED
    assert f"run {run.id} is recorded as cancelled" in rest
    assert "Traceback" not in rest

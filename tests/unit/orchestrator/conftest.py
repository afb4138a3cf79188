"""Fixtures: an open runtime on a scripted engine, other processes, an empty environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from orchestrator import Runtime
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with scripted_runtime(tmp_path) as opened:
        yield opened


@pytest.fixture
def dead_process_id(subprocesses: None) -> int:
    """The id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.fixture
def living_process(subprocesses: None) -> Iterator[subprocess.Popen[bytes]]:
    """Another process, which runs until it is killed."""
    command = [sys.executable, "-c", "import sys; sys.stdin.read()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
        yield process
        process.kill()


@pytest.fixture
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without settings of ours or of OpenTelemetry."""
    for name in os.environ:
        if name.startswith(("OTEL_", "ORCHESTRATE_")):
            monkeypatch.delenv(name)

"""Commands and runs in processes of their own, for tests of what goes on at the same time."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.places import ROOT

PATIENCE_S = 60
Process = subprocess.Popen[str]


@contextmanager
def started(*arguments: str, stdout: int = subprocess.PIPE) -> Iterator[Process]:
    """Python with these arguments; killed if it is still there at the end."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        [sys.executable, *arguments],
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def orchestrate(*arguments: str) -> tuple[str, ...]:
    """What `started` takes for a command."""
    return ("-m", "cli", *arguments)


def slow_run(corpus: Path) -> tuple[str, ...]:
    """What `started` takes for a run that would take minutes."""
    return (str(Path(__file__).with_name("slow_run.py")), str(corpus))


def read_until(stream: IO[str] | None, wanted: str) -> list[str]:
    """The lines up to the first one that holds something."""
    assert stream is not None
    lines = []
    for line in stream:
        lines.append(line)
        if wanted in line:
            return lines
    raise AssertionError(f"never said {wanted!r}: {lines}")

"""Starts commands and runs in separate processes, for tests of concurrent commands."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tests.places import ROOT

TIMEOUT_S = 60
Process = subprocess.Popen[str]


@contextmanager
def started(*arguments: str, stdout: int = subprocess.PIPE) -> Iterator[Process]:
    """A Python process with these arguments; killed at the end of the block if it still runs."""
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
    """The arguments of `started` for a command."""
    return ("-m", "cli", *arguments)


def slow_run(corpus: Path) -> tuple[str, ...]:
    """The arguments of `started` for a run that would take minutes."""
    return (str(Path(__file__).with_name("slow_run.py")), str(corpus))


def read_until(stream: IO[str] | None, text: str) -> list[str]:
    """The lines up to the first one that contains the text; fails if none does."""
    assert stream is not None
    lines = []
    for line in stream:
        lines.append(line)
        if text in line:
            return lines
    raise AssertionError(f"{text!r} was not printed: {lines}")

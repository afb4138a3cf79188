"""The processes of sandboxes, as /proc shows them from outside."""

from __future__ import annotations

import os
import time
from pathlib import Path

MARK = "ORCHESTRATE_TEST_PLACE"
"""A variable of the environment of a process with workspaces; its zygote inherits it."""


def zygotes(process: int) -> list[int]:
    """The zygotes that a process has started."""
    return [each for each in _children(process) if b"sandbox.zygote" in _read(each, "cmdline")]


def first_processes(process: int) -> list[int]:
    """Those from which the sandboxes of a process descend: outside, and the first inside."""
    outer = [each for zygote in zygotes(process) for each in _children(zygote)]
    return [*outer, *(each for process in outer for each in _children(process))]


def left_of(base: Path, mark: str) -> list[str]:
    """Processes with a workspace mounted over a base, or with a mark, and what they are."""
    mounted, marked = f" {base} ".encode(), f"{MARK}={mark}\0".encode()
    found = []
    for place in Path("/proc").glob("[1-9]*"):
        process = int(place.name)
        if process != os.getpid() and (
            mounted in _read(process, "mountinfo") or marked in _read(process, "environ")
        ):
            command = _read(process, "cmdline").replace(b"\0", b" ").decode(errors="replace")
            found.append(f"{process} {command}")
    return found


def gone(base: Path, mark: str, *, within_s: float) -> list[str]:
    """Wait until there are none of `left_of`; returns those that are left after a time."""
    until_s = time.monotonic() + within_s
    while (left := left_of(base, mark)) and time.monotonic() < until_s:
        time.sleep(0.005)
    return left


def _children(process: int) -> list[int]:
    tasks = _read(process, f"task/{process}/children")
    return [int(child) for child in tasks.split()]


def _read(process: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{process}/{name}").read_bytes()
    except OSError:
        return b""

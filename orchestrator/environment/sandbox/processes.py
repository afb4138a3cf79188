"""The processes of a sandbox, as its first process sees them in /proc."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator

_STOPPED = "TtZX"
_ACCESS_MODE = 3  # of open flags; 0 is read-only


def listed() -> list[tuple[int, str, int]]:
    """All descendants of this process: id, command, and which of its children it descends from."""
    found = []
    for child in _children().get(os.getpid(), ()):
        found += [(each, _command(each), child) for each in (child, *_descendants(child))]
    return found


def freeze() -> None:
    """Stop all processes but this one, and wait until each of their threads is stopped."""
    try:
        os.kill(-1, signal.SIGSTOP)
    except ProcessLookupError:
        return
    for process in _all():
        if process != 1:
            while not _is_stopped(process):
                time.sleep(0.0002)


def thaw() -> None:
    """Let all processes go on."""
    try:
        os.kill(-1, signal.SIGCONT)
    except ProcessLookupError:
        return


def kill_tree(process: int) -> None:
    """Kill all descendants of a process, also those that begin meanwhile."""
    while tree := _descendants(process):
        for each in tree:
            _kill(each)
        time.sleep(0.0005)


def writers_below(folder: str) -> list[tuple[int, str]]:
    """Processes with files below a folder that are open, or mapped, for writing."""
    found = set()
    for process in _all():
        if process != 1:
            found |= {(process, path) for path in _written_by(process, folder)}
    return sorted(found)


def _written_by(process: int, folder: str) -> Iterator[str]:
    place = f"/proc/{process}"
    try:
        for descriptor in os.listdir(f"{place}/fd"):
            path = os.readlink(f"{place}/fd/{descriptor}")
            if path.startswith(folder + "/") and _flags(f"{place}/fdinfo/{descriptor}"):
                yield path
        for line in _text(f"{place}/maps").splitlines():
            fields = line.split(maxsplit=5)
            is_shared = len(fields) == 6 and fields[1][1] == "w" and fields[1][3] == "s"
            if is_shared and fields[5].startswith(folder + "/"):
                yield fields[5]
    except OSError:
        return  # it has ended


def _flags(path: str) -> int:
    [flags] = [line for line in _text(path).splitlines() if line.startswith("flags:")]
    return int(flags.split()[1], 8) & _ACCESS_MODE


def _descendants(root: int) -> list[int]:
    """All live descendants of a process."""
    children = _children()
    found, left = [], list(children.get(root, ()))
    while left:
        process = left.pop()
        found.append(process)
        left += children.get(process, ())
    return found


def _children() -> dict[int, list[int]]:
    """The live children of each process."""
    parents = {process: _stat(process) for process in _all()}
    children: dict[int, list[int]] = {}
    for process, fields in parents.items():
        if fields is not None and fields[0] not in "ZX":
            children.setdefault(int(fields[1]), []).append(process)
    return children


def _is_stopped(process: int) -> bool:
    try:
        threads = os.listdir(f"/proc/{process}/task")
        return all(_state(f"/proc/{process}/task/{thread}") in _STOPPED for thread in threads)
    except OSError:
        return True  # it has ended


def _state(place: str) -> str:
    return _text(f"{place}/stat").rpartition(")")[2].split()[0]


def _stat(process: int) -> list[str] | None:
    """State, parent and so on; None if it has ended."""
    try:
        return _text(f"/proc/{process}/stat").rpartition(")")[2].split()
    except OSError:
        return None


def _command(process: int) -> str:
    try:
        return _text(f"/proc/{process}/cmdline").replace("\0", " ").strip()
    except OSError:
        return ""


def _kill(process: int) -> None:
    try:
        os.kill(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def _all() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _text(path: str) -> str:
    with open(path, errors="surrogateescape") as file:
        return file.read()

"""The descendants of a process, as /proc shows them, and signals that reach only these."""

from __future__ import annotations

import os
import signal
from collections.abc import Collection, Mapping, Sequence
from functools import cache
from typing import NamedTuple

_ENDED = "ZX"
_STOPPED = "TtZX"
_STATE, _PARENT, _NUM_THREADS, _STARTED = 0, 1, 17, 19
"""Fields of /proc/PID/stat behind the name."""
_VFORK = {"x86_64": ("56", "58"), "aarch64": ("220",)}
"""Numbers of clone and vfork."""
_GONE = (FileNotFoundError, ProcessLookupError)


class Process(NamedTuple):
    """One descendant.

    Attributes:
        branch: the child of the root from which it descends, or that it is.
        has_ended: it is a zombie.
        is_stopped: none of its threads executes anything until it gets SIGCONT; or it has ended.
        started: with the id it names the process for good, as ids are given again.
    """

    id: int
    parent: int
    branch: int
    has_ended: bool
    is_stopped: bool
    children: Sequence[int]
    started: str


class ProcessTree(NamedTuple):
    """All descendants of a process.

    Attributes:
        is_certain: false if one of them ended or moved meanwhile: then others may be missing.
    """

    processes: Sequence[Process]
    is_certain: bool


def descendants(root: int, *, but: Collection[int] = ()) -> ProcessTree:
    """Read the tree below a process, which has one thread.

    Args:
        but: children of the process with one thread that are left out; not what is below them.

    The state of each is read before its children: one that is stopped then begins no others. What
    is orphaned meanwhile may be missed, since it moves up the tree, to a place that was read
    already.
    """
    by_parent = None if _lists_children() else _children_by_parent()
    found: list[Process] = []
    is_certain = True
    left = [(child, root, child) for child in _children(root, [str(root)], by_parent)]
    while left:
        number, parent, branch = left.pop()
        if number in but:
            children: Sequence[int] = _children(number, [str(number)], by_parent)
        else:
            process = _look(number, branch, by_parent)
            if process is None or process.parent != parent:
                is_certain = False
                continue
            found.append(process)
            children = process.children
        left += [(child, number, branch) for child in children]
    return ProcessTree(found, is_certain)


def send_signal(process: Process, number: signal.Signals) -> None:
    """Send a signal to a process, unless it has ended: never to another that has its id now."""
    try:
        descriptor = os.pidfd_open(process.id)
    except ProcessLookupError:
        return
    try:
        fields = _fields(f"/proc/{process.id}/stat")
        if fields and fields[_STARTED] == process.started:
            signal.pidfd_send_signal(descriptor, number)
    except ProcessLookupError:
        return
    finally:
        os.close(descriptor)


def was_told_to_stop(process: int) -> bool:
    """Whether a process has stopped, or will without another signal."""
    # The signal first: it is pending until, at one moment, the process has stopped.
    return _has_pending_stop(process) or "T" in _thread_states(process).values()


def _has_pending_stop(process: int) -> bool:
    for line in _text_or_nothing(f"/proc/{process}/status").split("\n"):
        if line.startswith("ShdPnd:"):
            return bool(int(line.split()[1], 16) & 1 << signal.SIGSTOP - 1)
    return False


def command_of(process: int) -> str:
    """The arguments with which a process was executed; "" if it has ended."""
    return _text_or_nothing(f"/proc/{process}/cmdline").replace("\0", " ").strip()


def read_text(path: str) -> str:
    """The whole of a file in /proc; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(descriptor, 1 << 16):
            parts.append(part)
        return b"".join(parts).decode(errors="surrogateescape")
    finally:
        os.close(descriptor)


def _look(process: int, branch: int, by_parent: Mapping[int, list[int]] | None) -> Process | None:
    """None if it has ended, and was waited for."""
    fields = _fields(f"/proc/{process}/stat")
    if not fields:
        return None
    states = {str(process): fields[_STATE]}
    if fields[_NUM_THREADS] != "1":
        states = _thread_states(process)
    return Process(
        id=process,
        parent=int(fields[_PARENT]),
        branch=branch,
        has_ended=all(state in _ENDED for state in states.values()),
        is_stopped=_is_stopped(process, states),
        children=_children(process, list(states), by_parent),
        started=fields[_STARTED],
    )


def _is_stopped(process: int, states: Mapping[str, str]) -> bool:
    running = [thread for thread, state in states.items() if state not in _STOPPED]
    if not running:
        return True
    if any(states[thread] != "D" for thread in running):
        return False
    # What has called vfork waits for its child, which may be stopped, and does not count as stopped
    # itself. But it has been told to: it will execute nothing, and fork no more.
    return was_told_to_stop(process) and all(_is_in_vfork(process, thread) for thread in running)


def _is_in_vfork(process: int, thread: str) -> bool:
    call = _text_or_nothing(f"/proc/{process}/task/{thread}/syscall").partition(" ")[0]
    return call in _VFORK[os.uname().machine]


def _thread_states(process: int) -> dict[str, str]:
    states = {}
    for thread in _threads(process):
        fields = _fields(f"/proc/{process}/task/{thread}/stat")
        states[thread] = fields[_STATE] if fields else "X"
    return states


def _threads(process: int) -> list[str]:
    try:
        return os.listdir(f"/proc/{process}/task")
    except _GONE:
        return []


def _children(
    process: int, threads: Sequence[str], by_parent: Mapping[int, list[int]] | None
) -> list[int]:
    if by_parent is not None:
        return by_parent.get(process, [])
    listed = [_text_or_nothing(f"/proc/{process}/task/{each}/children") for each in threads]
    return [int(child) for text in listed for child in text.split()]


def _children_by_parent() -> dict[int, list[int]]:
    """For kernels without CONFIG_PROC_CHILDREN."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := _fields(f"/proc/{name}/stat")):
            children.setdefault(int(fields[_PARENT]), []).append(int(name))
    return children


@cache
def _lists_children() -> bool:
    process = os.getpid()
    return os.path.exists(f"/proc/{process}/task/{process}/children")


def _fields(path: str) -> list[str]:
    """The fields of a stat file behind the name, which may contain anything; [] if it is gone."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except _GONE:
        return []
    try:
        return os.read(descriptor, 4096).decode(errors="replace").rpartition(")")[2].split()
    except _GONE:
        return []
    finally:
        os.close(descriptor)


def _text_or_nothing(path: str) -> str:
    """The whole of a file in /proc; "" if its process has ended."""
    try:
        return read_text(path)
    except _GONE:
        return ""

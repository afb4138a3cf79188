"""Freezes and kills the descendants of a process, and finds those that write by a mapping."""

from __future__ import annotations

import errno
import signal
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from .process_tree import (
    Process,
    command_of,
    descendants,
    read_text,
    send_signal,
    was_told_to_stop,
)

_PAUSE_S = 0.0002
_PATIENCE_S = 10.0
"""What hangs in the kernel, for example on a network file system, does not stop."""


def freeze(
    root: int, *, but: Collection[int], idle: Collection[int]
) -> tuple[list[Process], list[Process]]:
    """Stop all descendants of a process.

    Args:
        but: children of it that are left as they are; not what is below them.
        idle: those which wait for us: they are stopped only if something is below them.
    Returns:
        Those that this has stopped, and those that could have written anything since: these, and
        what was stopped before.
    Raises:
        TimeoutError: one of them does not stop; all go on.
    """
    stopped: dict[int, Process] = {}

    def stop(process: Process) -> None:
        if process.id in stopped or not was_told_to_stop(process.id):  # by others
            stopped[process.id] = process
            send_signal(process, signal.SIGSTOP)

    def is_running(process: Process) -> bool:
        return not process.is_stopped and not _is_spared(process, idle)

    try:
        processes = _until_none(root, but, is_running, stop, "stop")
    except BaseException:
        thaw(stopped.values())
        raise
    active = [each for each in processes if not each.has_ended and not _is_spared(each, idle)]
    return list(stopped.values()), active


def thaw(stopped: Iterable[Process]) -> None:
    """Let those go on that `freeze` has stopped."""
    for process in stopped:
        send_signal(process, signal.SIGCONT)


def kill_tree(root: int, *, but: Collection[int] = (), idle: Collection[int] = ()) -> None:
    """Kill all descendants of a process, also those that begin meanwhile.

    Args:
        but: children of it that are spared; not what is below them.
        idle: those which wait for us: they are killed only if something is below them.
    Raises:
        TimeoutError: one of them does not end.
    """

    def counts(process: Process) -> bool:
        return not process.has_ended and not _is_spared(process, idle)

    def kill(process: Process) -> None:
        send_signal(process, signal.SIGKILL)

    _until_none(root, but, counts, kill, "end")


def living(root: int, *, but: Collection[int]) -> list[Process]:
    """The descendants of a process that have not ended."""
    return [each for each in descendants(root, but=but).processes if not each.has_ended]


def mapped_writers(processes: Iterable[Process], folder: str) -> list[tuple[int, str, str]]:
    """Those which have a file below a folder in memory, shared and writable.

    A write through such a mapping shows neither in the open descriptors nor, for certain, in the
    file's times.

    Returns:
        Id, command and path; the folder itself for a process that does not let itself be looked at.
    """
    return [
        (each.id, command_of(each.id), path)
        for each in processes
        for path in sorted(set(_mapped(each.id, folder)))
    ]


def _is_spared(process: Process, idle: Collection[int]) -> bool:
    return process.id in idle and not process.children


def _until_none(
    root: int,
    but: Collection[int],
    counts: Callable[[Process], bool],
    act: Callable[[Process], None],
    what: str,
) -> Sequence[Process]:
    """Act on all descendants that count, until twice in a row there is none; returns all others.

    One reading may miss what is orphaned meanwhile: see `descendants`. But if all that it finds is
    stopped or has ended, what it missed runs below a process that runs or adopts orphans, and the
    next reading finds it there.
    """
    end, num_clean = time.monotonic() + _PATIENCE_S, 0
    while True:
        tree = descendants(root, but=but)
        left = [process for process in tree.processes if counts(process)]
        num_clean = num_clean + 1 if tree.is_certain and not left else 0
        if num_clean == 2:
            return tree.processes
        for process in left:
            act(process)
        if left and time.monotonic() > end:
            names = ", ".join(f"process {each.id} ({command_of(each.id)})" for each in left)
            raise TimeoutError(errno.ETIMEDOUT, f"{names} does not {what}")
        if left:
            time.sleep(_PAUSE_S)


def _mapped(process: int, folder: str) -> Iterator[str]:
    try:
        lines = read_text(f"/proc/{process}/maps").split("\n")
    except PermissionError:
        yield folder
        return
    except (FileNotFoundError, ProcessLookupError):
        return  # it has ended
    for line in lines:
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[1][1] == "w" and fields[1][3] == "s":
            path = fields[5].replace("\\012", "\n")
            if path.startswith(folder + "/"):
                yield path

"""Starts a program in a sandbox, below a process that keeps its whole tree together."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Sequence

from . import linux
from .messages import Command, Limits
from .processes import kill_tree

_CANNOT_EXECUTE = 126
_NOT_FOUND = 127
_FIRST_SAVED = 512
"""Descriptors are moved up here before they get their numbers, so that none is overwritten."""


def start_program(command: Command, descriptors: Sequence[int], view: int) -> int:
    """Start a program in the mount namespace `view`.

    Returns:
        The id of the process that waits for it, and ends with its exit code; 128 and the signal's
        number if a signal ended it, as in a shell.
    """
    keeper = os.fork()
    if keeper:
        return keeper
    try:
        os._exit(_keep(command, descriptors, view))
    finally:
        os._exit(_CANNOT_EXECUTE)


def _keep(command: Command, descriptors: Sequence[int], view: int) -> int:
    """Start the program and wait for it. All its descendants stay below this process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    linux.die_with_parent(signal.SIGKILL)
    linux.become_subreaper()
    linux.enter_namespace(view)
    program = os.fork()
    if program == 0:
        try:
            _execute(command, descriptors)
        except BaseException as error:
            os.write(2, f"{command['arguments'][0]}: {error}\n".encode())
            is_missing = isinstance(error, FileNotFoundError)
            os._exit(_NOT_FOUND if is_missing else _CANNOT_EXECUTE)
    os.closerange(0, 4096)  # or a pipe would not end with the program
    while True:
        process, status = os.wait()
        if process == program:
            break
    if not command["keeps"]:
        kill_tree(os.getpid())
    else:
        _wait_for_the_rest()
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def _execute(command: Command, descriptors: Sequence[int]) -> None:
    os.setsid()
    saved = [os.dup(descriptor) for descriptor in descriptors]
    saved = [_moved_up(each, _FIRST_SAVED + index) for index, each in enumerate(saved)]
    for source, target in zip(saved, command["descriptors"], strict=True):
        os.dup2(source, target, inheritable=True)
    kept = set(command["descriptors"])
    for descriptor in range(3, 1024):
        if descriptor not in kept:
            _close(descriptor)
    os.chdir(command["folder"])
    for signal_number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signal_number, signal.SIG_DFL)
    _set_limits(command["limits"])
    linux.drop_privileges()
    arguments = command["arguments"]
    os.execvpe(arguments[0], list(arguments), dict(command["variables"]))


def _set_limits(limits: Limits) -> None:
    kinds = {
        "cpu_s": resource.RLIMIT_CPU,
        "memory_bytes": resource.RLIMIT_AS,
        "processes": resource.RLIMIT_NPROC,
        "file_bytes": resource.RLIMIT_FSIZE,
    }
    for name, value in limits.items():
        assert isinstance(value, int), "limits are whole numbers"
        resource.setrlimit(kinds[name], (value, value))


def _moved_up(descriptor: int, number: int) -> int:
    os.dup2(descriptor, number, inheritable=False)
    os.close(descriptor)
    return number


def _close(descriptor: int) -> None:
    try:
        os.close(descriptor)
    except OSError:
        return


def _wait_for_the_rest() -> None:
    try:
        while True:
            os.wait()
    except ChildProcessError:  # none is left
        return

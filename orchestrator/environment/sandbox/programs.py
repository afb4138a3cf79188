"""Starts a program in a sandbox, below a process that keeps its whole tree together."""

from __future__ import annotations

import fcntl
import os
import resource
import signal
import termios
from collections.abc import Sequence
from typing import NamedTuple

from . import landlock, linux, seccomp
from .messages import Command, Limits
from .processes import kill_tree

_CANNOT_EXECUTE = 126
_NOT_FOUND = 127
_FIRST_SAVED = 512
"""Descriptors are moved up here before they get their numbers, so that none is overwritten."""


class Bounds(NamedTuple):
    """What each program of a sandbox is put under before it is executed.

    Attributes:
        view: a descriptor of its mount namespace; None: ours.
        rules: a descriptor of Landlock's rules; None: none.
        filter: of its system calls.
        own_processes: how many processes beside the programs count towards their limit; None: that
            limit is not set, since the system counts all processes of the user.
    """

    view: int | None
    rules: int | None
    filter: bytes
    own_processes: int | None


def start_program(command: Command, descriptors: Sequence[int], bounds: Bounds) -> tuple[int, int]:
    """Start a program.

    Returns:
        The id of the process that keeps its tree, and ends with its exit code; 128 and the signal's
        number if a signal ended it, as in a shell. And the id of the program itself.
    """
    started, is_started = os.pipe()
    parent = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        try:
            os.close(started)
            os._exit(_keep(command, descriptors, bounds, parent, is_started))
        finally:
            os._exit(_CANNOT_EXECUTE)
    os.close(is_started)
    try:
        return keeper, int(os.read(started, 32) or keeper)
    finally:
        os.close(started)


def _keep(
    command: Command, descriptors: Sequence[int], bounds: Bounds, parent: int, is_started: int
) -> int:
    """Start the program and wait for it. All its descendants stay below this process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    end_with_parent(parent)
    linux.become_subreaper()
    if bounds.view is not None:
        linux.enter_namespace(bounds.view)
    keeper = os.getpid()
    program = os.fork()
    if program == 0:
        try:
            _execute(command, descriptors, bounds, keeper)
        except BaseException as error:
            os.write(2, f"{command['arguments'][0]}: {error}\n".encode())
            is_missing = isinstance(error, FileNotFoundError)
            os._exit(_NOT_FOUND if is_missing else _CANNOT_EXECUTE)
    os.write(is_started, str(program).encode())
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


def end_with_parent(parent: int) -> None:
    """End this process with all its descendants once its parent has ended.

    Without a PID namespace nothing else would end them.
    """

    def end(*_: object) -> None:
        if os.getppid() != parent:  # else some program has sent the signal
            kill_tree(os.getpid())
            os._exit(128 + signal.SIGTERM)

    signal.signal(signal.SIGTERM, end)
    linux.die_with_parent(signal.SIGTERM)
    end()  # it may have ended before


def _execute(command: Command, descriptors: Sequence[int], bounds: Bounds, parent: int) -> None:
    os.setsid()
    saved = [os.dup(descriptor) for descriptor in descriptors]
    saved = [_moved_up(each, _FIRST_SAVED + index) for index, each in enumerate(saved)]
    rules = bounds.rules
    if rules is not None:
        rules = _moved_up(os.dup(rules), _FIRST_SAVED + len(saved))
    for source, target in zip(saved, command["descriptors"], strict=True):
        os.dup2(source, target, inheritable=True)
    if command.get("terminal"):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    kept = {*command["descriptors"], rules}
    for descriptor in range(3, 1024):
        if descriptor not in kept:
            _close(descriptor)
    os.chdir(command["folder"])
    for signal_number in (signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signal_number, signal.SIG_DFL)
    linux.drop_privileges()
    linux.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        return
    if rules is not None:
        landlock.restrict(rules)
        os.close(rules)
    seccomp.install(bounds.filter)
    arguments, variables = list(command["arguments"]), dict(command["variables"])
    _set_limits(command["limits"], bounds.own_processes)
    os.execvpe(arguments[0], arguments, variables)


def _set_limits(limits: Limits, own_processes: int | None) -> None:
    kinds = {
        "cpu_s": resource.RLIMIT_CPU,
        "memory_bytes": resource.RLIMIT_AS,
        "processes": resource.RLIMIT_NPROC,
        "file_bytes": resource.RLIMIT_FSIZE,
    }
    for name, value in limits.items():
        assert isinstance(value, int), "limits are whole numbers"
        if name == "processes":
            if own_processes is None:
                continue
            value += own_processes
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

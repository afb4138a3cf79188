"""The first process of a sandbox: it has the namespaces, does all mounts, and starts programs."""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import socket
import struct
from collections.abc import Callable
from typing import Any, NoReturn

from . import linux
from .files import open_below
from .messages import Plan, receive, send
from .overlay import Overlay
from .processes import freeze, kill_tree, listed, thaw
from .programs import start_program

_NAMESPACES = (
    linux.CLONE_NEWUSER
    | linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
)
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41


def become_sandbox(plan: Plan, control: socket.socket) -> NoReturn:
    """Turn this process, which was forked for it, into a sandbox; it ends with its parent.

    Raises:
        OSError: the system refuses a namespace or a mount.
    """
    linux.die_with_parent(signal.SIGKILL)
    user, group = os.geteuid(), os.getegid()
    linux.unshare(_NAMESPACES | (0 if plan["network"] else linux.CLONE_NEWNET))
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    init = os.fork()  # only children are in the new PID namespace
    if init:
        control.close()
        os.waitpid(init, 0)
        os._exit(0)
    linux.die_with_parent(signal.SIGKILL)
    if not plan["network"]:
        _bring_up_loopback()
    _Init(plan, control).serve()


class _Init:
    """Process 1 of a sandbox."""

    def __init__(self, plan: Plan, control: socket.socket) -> None:
        self._control = control
        self._at = plan["at"]
        self._overlay = Overlay(plan)
        self._view = _view_of(plan)
        self._programs: set[int] = set()

    def serve(self) -> NoReturn:
        """Answer messages and report programs that end, until the other side is closed."""
        waking, woken = socket.socketpair()
        for end in (waking, woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        send(self._control, {"ready": True})
        while True:
            for key, _ in selector.select():
                if key.fileobj is woken:
                    woken.recv(4096)
                    self._report_ended()
                else:
                    self._answer_next()

    def _answer_next(self) -> None:
        message, descriptors = receive(self._control)
        if message is None:
            os._exit(0)  # with process 1 all others of the namespace end
        answer: dict[str, Any] = {"id": message.pop("id")}
        try:
            operation: Callable[..., dict[str, Any]] = getattr(self, "do_" + message.pop("do"))
            answer |= operation(**message, descriptors=descriptors)
        except BaseException as error:
            number = error.errno if isinstance(error, OSError) else None
            answer |= {"error": f"{type(error).__name__}: {error}", "errno": number}
        opened = [answer.pop("opened")] if "opened" in answer else []
        send(self._control, answer, opened)
        for descriptor in (*descriptors, *opened):
            os.close(descriptor)

    def _report_ended(self) -> None:
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not process:
                return
            if process in self._programs:
                self._programs.discard(process)
                send(self._control, {"ended": process, "status": os.waitstatus_to_exitcode(status)})

    def do_start(self, *, command: Any, descriptors: list[int]) -> dict[str, Any]:
        """Start a program; its end is reported later."""
        process = start_program(command, descriptors, self._view)
        self._programs.add(process)
        return {"process": process}

    def do_kill(self, *, process: int, descriptors: list[int]) -> dict[str, Any]:
        """Kill a program with all its descendants."""
        if process in self._programs:
            kill_tree(process)
        return {}

    def do_freeze(self, *, descriptors: list[int]) -> dict[str, Any]:
        """Stop all processes but this one; returns once they are stopped."""
        freeze()
        return {}

    def do_thaw(self, *, descriptors: list[int]) -> dict[str, Any]:
        """Let all processes go on."""
        thaw()
        return {}

    def do_processes(self, *, descriptors: list[int]) -> dict[str, Any]:
        """All processes but this one."""
        return {"processes": listed()}

    def do_open(
        self, *, path: str, flags: int, mode: int, descriptors: list[int]
    ) -> dict[str, Any]:
        """Open a file below the workspace."""
        try:
            return {"opened": open_below(self._at, path, flags, mode)}
        except OSError as error:
            return {"refused": error.errno}

    def do_mount(
        self, *, layers: list[str], upper: str, work: str, descriptors: list[int]
    ) -> dict[str, Any]:
        """Mount another stack at the same place."""
        self._overlay.replace(layers, upper, work)
        return {}


def _view_of(plan: Plan) -> int:
    """The mount namespace of programs: all is read-only but the workspace and private folders.

    It is a slave of this process's: what is mounted here appears there.

    Returns:
        A descriptor of the namespace.
    """
    ready, is_ready = os.pipe()
    done, is_done = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            linux.unshare(linux.CLONE_NEWNS)
            linux.mount("none", "/", "", linux.MS_REC | linux.MS_SLAVE)
            linux.set_mount_attributes("/", add=linux.MOUNT_ATTR_RDONLY, recursive=True)
            for folder in (plan["at"], *plan["private"]):
                linux.set_mount_attributes(folder, remove=linux.MOUNT_ATTR_RDONLY)
            for folder in plan["hide"]:
                linux.mount("hidden", folder, "tmpfs", linux.MS_RDONLY, "size=4k,mode=0")
            os.write(is_ready, b"\0")
        except OSError as error:
            os.write(is_ready, str(error).encode())
        os.close(is_done)
        os.read(done, 1)
        os._exit(0)
    for descriptor in (is_ready, done):
        os.close(descriptor)
    problem = os.read(ready, 4096)
    try:
        if problem != b"\0":
            raise OSError(problem.decode() or "the process that makes the view has died")
        return os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(is_done)
        os.close(ready)
        os.waitpid(process, 0)


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh", b"lo", _IFF_UP_RUNNING)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)

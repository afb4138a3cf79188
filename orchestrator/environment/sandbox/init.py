"""The first process of a sandbox: all programs are below it, and it does what is asked."""

from __future__ import annotations

import os
import selectors
import signal
import socket
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from . import landlock, linux, seccomp
from .files import open_below
from .messages import Plan, receive, send
from .namespaces import enter_namespaces, limits_processes, make_view
from .overlay import Overlay
from .process_tree import Process, command_of
from .processes import freeze, kill_tree, living, mapped_writers, thaw
from .programs import Bounds, end_with_parent, start_program

_OWN_PROCESSES = 2
"""The first process, and the one that waits for it outside of the PID namespace."""
_UNIX, _INET, _INET6, _NETLINK = 1, 2, 10, 16
"""Families of sockets: the last three reach only the network devices of their namespace."""


def become_sandbox(plan: Plan, control: socket.socket, parent: int) -> NoReturn:
    """Turn this process, which `parent` has forked for it, into a sandbox; it ends with that.

    Raises:
        OSError: the system refuses a namespace, a mount or a filter.
    """
    seccomp.require()
    by_namespaces = plan["confinement"] == "namespaces"
    families = None
    if not plan["network"]:
        families = (_UNIX, _INET, _INET6, _NETLINK) if by_namespaces else (_UNIX,)
    calls = seccomp.compiled_filter(os.uname().machine, families)
    if by_namespaces:
        is_limiting = limits_processes()
        enter_namespaces(network=plan["network"])
        overlay = Overlay(plan)
        bounds = Bounds(make_view(plan), None, calls, _OWN_PROCESSES if is_limiting else None)
        gaps = [] if is_limiting else ["processes"]
    else:
        os.setsid()  # else a terminal's signals would end it before its programs
        linux.become_subreaper()
        end_with_parent(parent)
        overlay, version = None, landlock.version()
        bounds = Bounds(None, _rules(plan, version), calls, None)
        gaps = [*landlock.gaps(version), "processes"]
    _Init(plan, control, bounds, overlay).serve(gaps)


def _rules(plan: Plan, version: int) -> int | None:
    if version == 0:
        return None
    write = [plan["at"], *plan["private"]]
    return landlock.ruleset(version, write=write, hide=[plan["root"], *plan["hide"]])


class _Init:
    """The first process of a sandbox."""

    def __init__(
        self, plan: Plan, control: socket.socket, bounds: Bounds, overlay: Overlay | None
    ) -> None:
        self._at = plan["at"]
        self._control = control
        self._bounds = bounds
        self._overlay = overlay
        self._variables = {} if overlay is not None else {"TMPDIR": plan["private"][0]}
        self._programs: dict[int, int] = {}  # by the process that keeps its tree
        self._stopped: list[Process] = []

    def serve(self, gaps: Sequence[str]) -> NoReturn:
        """Answer messages and report programs that end, until the other side is closed."""
        waking, woken = socket.socketpair()
        for end in (waking, woken):
            end.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
        selector = selectors.DefaultSelector()
        selector.register(self._control, selectors.EVENT_READ)
        selector.register(woken, selectors.EVENT_READ)
        send(self._control, {"ready": True, "gaps": gaps})
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
            try:
                kill_tree(os.getpid())
            finally:
                os._exit(0)
        number = message.pop("id")
        try:
            operation: Callable[..., dict[str, Any]] = getattr(self, "do_" + message.pop("do"))
            answer = operation(**message, descriptors=descriptors)
            if "opened" in answer:
                descriptors.append(answer.pop("opened"))
                send(self._control, {"id": number}, descriptors[-1:])
            else:
                send(self._control, {"id": number} | answer)
        except BaseException as error:
            code = error.errno if isinstance(error, OSError) else None
            text = f"{type(error).__name__}: {error}"
            send(self._control, {"id": number, "error": text, "errno": code})
        for descriptor in descriptors:
            os.close(descriptor)

    def _report_ended(self) -> None:
        while True:
            try:
                process, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not process:
                return
            if self._programs.pop(process, None) is not None:
                send(self._control, {"ended": process, "status": os.waitstatus_to_exitcode(status)})

    def do_start(self, *, command: Any, descriptors: list[int]) -> dict[str, Any]:
        """Start a program; its end is reported later."""
        command["variables"] = self._variables | command["variables"]
        bounds = self._bounds
        if bounds.own_processes is not None:  # each program has a keeper
            own_processes = bounds.own_processes + len(self._programs) + 1
            bounds = bounds._replace(own_processes=own_processes)
        keeper, program = start_program(command, descriptors, bounds)
        self._programs[keeper] = program
        return {"process": keeper}

    def do_kill(self, *, process: int, descriptors: list[int]) -> dict[str, Any]:
        """Kill a program with all its descendants."""
        if process in self._programs:
            kill_tree(process)
        return {}

    def do_end(self, *, descriptors: list[int]) -> dict[str, Any]:
        """Kill all processes; returns once none is left."""
        kill_tree(os.getpid())
        return {}

    def do_freeze(self, *, idle: list[int], descriptors: list[int]) -> dict[str, Any]:
        """Stop all programs, but `idle` ones below which nothing runs; returns once they are."""
        stopped, active = freeze(
            os.getpid(), but=self._programs.keys(), idle=self._of_keepers(idle)
        )
        self._stopped += stopped
        return {"stopped": bool(stopped), "writers": mapped_writers(active, self._at)}

    def do_thaw(self, *, descriptors: list[int]) -> dict[str, Any]:
        """Let those go on that `do_freeze` has stopped."""
        thaw(self._stopped)
        self._stopped.clear()
        return {}

    def do_processes(self, *, descriptors: list[int]) -> dict[str, Any]:
        """All processes of programs: id, command, and the program that each is a part of."""
        processes = living(os.getpid(), but=self._programs.keys())
        return {"processes": [(each.id, command_of(each.id), each.branch) for each in processes]}

    def do_writers(self, *, descriptors: list[int]) -> dict[str, Any]:
        """Processes that have a file of the workspace in memory, shared and writable."""
        processes = living(os.getpid(), but=self._programs.keys())
        return {"writers": mapped_writers(processes, self._at)}

    def do_open(
        self, *, path: str, flags: int, mode: int, descriptors: list[int]
    ) -> dict[str, Any]:
        """Open a file below the workspace."""
        try:
            return {"opened": open_below(self._at, path, flags, mode)}
        except OSError as error:
            return {"refused": error.errno}

    def do_mount(
        self, *, layers: list[str], upper: str, work: str, idle: list[int], descriptors: list[int]
    ) -> dict[str, Any]:
        """Kill all programs, but `idle` ones; then mount another stack at the same place."""
        if self._overlay is None:
            raise ValueError("a sandbox without namespaces mounts nothing")
        kill_tree(os.getpid(), but=self._programs.keys(), idle=self._of_keepers(idle))
        self._overlay.replace(layers, upper, work)
        return {}

    def _of_keepers(self, keepers: Sequence[int]) -> list[int]:
        return [self._programs[each] for each in keepers if each in self._programs]

"""Starts sandboxes and talks to them, from an event loop."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import errno
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.sandbox.messages import Command, Plan, encoded, receive, send
from orchestrator.environment.trees.enforcement import Enforcement

_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from sandbox.zygote import main; main()"


class Process(NamedTuple):
    """A process in a sandbox.

    Attributes:
        program: the process that keeps together all that one `start` began.
    """

    process: int
    command: str
    program: int


class Zygote:
    """The process from which all sandboxes of this process are forked."""

    def __init__(self) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _PROGRAM, _folder(), str(its.fileno())],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._orders = ours
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._is_deaf = False

    @property
    def is_alive(self) -> bool:
        """Whether it can fork sandboxes."""
        return not self._is_deaf and self._process.poll() is None

    @property
    def is_ours(self) -> bool:
        """Whether this process has started it; else it is a copy in a fork of that process."""
        return os.getpid() == self._owner

    async def fork(self, plan: Plan) -> Sandbox:
        """Start a sandbox.

        Raises:
            SandboxFailed: the system refuses a namespace or a mount.
        """
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            with its, self._lock:
                send(self._orders, plan, [its.fileno()])
        except OSError as error:
            ours.close()
            self._is_deaf = True  # it is about to end
            raise _died("the process that starts sandboxes has died") from error
        return await Sandbox.connected(ours, self, plan)

    def close(self) -> None:
        """End it, and with it all sandboxes; idempotent. In a fork of its owner it goes on."""
        if self.is_ours:
            _hang_up(self._orders)
            self._process.wait()


_zygotes: dict[int, Zygote] = {}


def shared_zygote() -> Zygote:
    """The zygote of this process, which ends with it; started anew if it has ended."""
    process = os.getpid()
    if process not in _zygotes or not _zygotes[process].is_alive:
        if process in _zygotes:
            _zygotes[process].close()
        _zygotes.clear()  # those of a process that this one was forked from are not ours
        _zygotes[process] = Zygote()
        atexit.register(_zygotes[process].close)
    return _zygotes[process]


@dataclass(slots=True, eq=False)
class Program:
    """A program in a sandbox; `ended` becomes its exit code."""

    process: int
    ended: asyncio.Future[int]


class Writer(NamedTuple):
    """A process that has a file of the workspace in memory, shared and writable."""

    process: int
    command: str
    path: str


class Frozen(NamedTuple):
    """What `Sandbox.freeze` has found.

    Attributes:
        is_any_stopped: if not, there is nothing to thaw.
        writers: processes that may have written a file without a change of its times.
    """

    is_any_stopped: bool
    writers: Sequence[Writer]


class _Unsent(NamedTuple):
    """A message for which the sandbox had no room yet."""

    number: int
    data: bytes
    descriptors: Sequence[int]
    answered: asyncio.Future[dict[str, Any]]


class Sandbox:
    """A sandbox; belongs to the event loop that started it.

    Attributes:
        enforcement: what holds its programs.
    """

    enforcement: Enforcement

    def __init__(self, control: socket.socket, zygote: Zygote) -> None:
        self._control = control
        self._zygote = zygote  # with its last reference all its sandboxes would end
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._unsent: deque[_Unsent] = deque()
        self._programs: dict[int, Program] = {}
        self._failure: SandboxFailed | None = None

    @classmethod
    async def connected(cls, control: socket.socket, zygote: Zygote, plan: Plan) -> Sandbox:
        """The sandbox at the other end, once it is ready; raises SandboxFailed."""
        sandbox = cls(control, zygote)
        control.setblocking(False)
        ready = sandbox._answers[-1] = sandbox._loop.create_future()
        sandbox._loop.add_reader(control.fileno(), sandbox._read)
        try:
            gaps = (await ready)["gaps"]
        except BaseException:
            sandbox.close()
            raise
        sandbox.enforcement = Enforcement(plan["confinement"], tuple(gaps))
        return sandbox

    async def start(self, command: Command, descriptors: Sequence[int]) -> Program:
        """Start a program with these descriptors, which stay ours."""
        answer = await self._ask("start", descriptors, command=command)
        return self._programs.setdefault(
            answer["process"], Program(answer["process"], self._loop.create_future())
        )

    async def kill(self, program: Program) -> None:
        """Kill a program with all its descendants, and wait for its end."""
        await self._ask("kill", process=program.process)
        await asyncio.shield(program.ended)

    async def freeze(self, *, idle: Iterable[int] = ()) -> Frozen:
        """Stop all processes; returns once they are stopped.

        Args:
            idle: programs that wait for us, such as a shell without a command: they are stopped
                only if something runs below them.
        Raises:
            SandboxFailed: one of them does not stop; all go on.
        """
        answer = await self._ask("freeze", idle=list(idle))
        return Frozen(answer["stopped"], _writers(answer))

    async def thaw(self) -> None:
        """Let those go on that `freeze` has stopped."""
        await self._ask("thaw")

    @contextlib.asynccontextmanager
    async def frozen(self, *, idle: Iterable[int] = ()) -> AsyncIterator[Sequence[Writer]]:
        """All processes are stopped in this block, as by `freeze`."""
        frozen = None
        try:
            frozen = await self.freeze(idle=idle)
            yield frozen.writers
        finally:
            if frozen is None or frozen.is_any_stopped:
                with contextlib.suppress(SandboxFailed):
                    await asyncio.shield(self.thaw())

    async def mapped_writers(self) -> Sequence[Writer]:
        """Processes that have a file of the workspace in memory, shared and writable.

        Its descriptor may be closed, and its times need not change when it is written.
        """
        return _writers(await self._ask("writers"))

    async def processes(self) -> list[Process]:
        """Its processes, but those that keep programs together."""
        return [Process(*each) for each in (await self._ask("processes"))["processes"]]

    async def open(self, path: str, flags: int, mode: int) -> int:
        """Open a file below the workspace, as its programs see it; the descriptor is the caller's.

        Links that lead out of it are not followed. With os.O_CREAT folders on the way are made.

        Raises:
            OSError: as open(2) does.
        """
        answer = await self._ask("open", path=path, flags=flags, mode=mode)
        if answer.get("refused") is not None:
            raise OSError(answer["refused"], os.strerror(answer["refused"]), path)
        return int(answer["descriptor"])

    async def mount(
        self, layers: Sequence[str], upper: str, work: str, *, idle: Iterable[int] = ()
    ) -> None:
        """End all processes, and mount another stack at the same place: see Overlay.replace.

        Args:
            idle: programs that wait for us: they are ended only if something runs below them.
        """
        await self._ask("mount", layers=layers, upper=upper, work=work, idle=list(idle))

    async def end(self) -> None:
        """End all its processes, and wait until they have; then as `close`."""
        with contextlib.suppress(SandboxFailed):
            await self._ask("end")
        self.close()

    def close(self) -> None:
        """End all its processes; what waits for one gets SandboxFailed."""
        self._fail(SandboxFailed("the sandbox was closed"))

    async def _ask(
        self, operation: str, descriptors: Sequence[int] = (), **more: Any
    ) -> dict[str, Any]:
        if self._failure is not None:
            raise self._failure
        return await self._send(operation, descriptors, **more)

    def _send(
        self, operation: str, descriptors: Sequence[int] = (), **more: Any
    ) -> asyncio.Future[dict[str, Any]]:
        """The answer to come."""
        number = next(self._ids)
        data = encoded({"id": number, "do": operation} | more)
        answered = self._answers[number] = self._loop.create_future()
        self._unsent.append(_Unsent(number, data, descriptors, answered))
        if len(self._unsent) == 1:
            self._send_all()
        return answered

    def _send_all(self) -> None:
        """Send what waits, in order, as far as the sandbox has room for it."""
        while self._unsent:
            number, data, descriptors, answered = self._unsent[0]
            try:
                if descriptors and answered.cancelled():  # they may be closed
                    self._answers.pop(number)
                else:
                    socket.send_fds(self._control, [data], list(descriptors))
            except BlockingIOError:
                self._loop.add_writer(self._control.fileno(), self._send_all)
                return
            except OSError as error:
                self._fail(_died(f"the sandbox has died: {error}"))
                return
            self._unsent.popleft()
        self._loop.remove_writer(self._control.fileno())

    def _read(self) -> None:
        try:
            message, descriptors = receive(self._control)
        except BlockingIOError:
            return
        if message is None:
            self._fail(_died("the sandbox has died"))
        elif "ended" in message:
            program = self._programs.pop(message["ended"], None)
            if program is not None and not program.ended.done():
                program.ended.set_result(message["status"])
        else:
            self._answered(message | dict(zip(["descriptor"], descriptors, strict=False)))

    def _answered(self, message: dict[str, Any]) -> None:
        answered = self._answers.pop(message.pop("id", -1), None)
        if answered is None:  # the zygote has no processes left for it
            self._fail(SandboxFailed(message["error"], message["errno"]))
            return
        if answered.done():  # cancelled
            if "descriptor" in message:
                os.close(message["descriptor"])
            if "process" in message:  # a program that nobody waits for
                self._send("kill", process=message["process"])
            return
        if "error" in message:
            answered.set_exception(SandboxFailed(message["error"], message["errno"]))
        else:
            answered.set_result(message)

    def _fail(self, failure: SandboxFailed) -> None:
        if self._failure is not None:
            return
        self._failure = failure
        self._loop.remove_reader(self._control.fileno())
        self._loop.remove_writer(self._control.fileno())
        self._unsent.clear()
        if self._zygote.is_ours:
            _hang_up(self._control)
        self._control.close()
        waiting: list[asyncio.Future[Any]] = [
            *self._answers.values(),
            *(each.ended for each in self._programs.values()),
        ]
        self._answers.clear()
        self._programs.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(failure)
                with contextlib.suppress(SandboxFailed):
                    future.exception()  # so that asyncio does not warn of one that nobody awaits


def _hang_up(connection: socket.socket) -> None:
    """Close a connection, also if forks of this process hold copies of it."""
    with contextlib.suppress(OSError):  # the other side has ended
        connection.shutdown(socket.SHUT_RDWR)
    connection.close()


def _writers(answer: dict[str, Any]) -> list[Writer]:
    return [Writer(*fields) for fields in answer["writers"]]


def _died(reason: str) -> SandboxFailed:
    return SandboxFailed(reason, errno.ESRCH)


def _folder() -> str:
    """The folder in which the package `sandbox` lies."""
    return str(Path(__file__).resolve().parents[1])

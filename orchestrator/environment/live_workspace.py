"""A mounted workspace: what it can do, with no record of it in any run."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shlex
import time
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import PurePosixPath

from orchestrator.cancellation import in_thread, run_to_completion
from orchestrator.environment.completed import TIMED_OUT, Completed
from orchestrator.environment.errors import (
    OutsideWorkspace,
    SandboxFailed,
    ShellBusy,
    StateLost,
    WorkspaceFull,
)
from orchestrator.environment.states.stored_states import Base, Service, State, States
from orchestrator.environment.trees.enforcement import Enforcement
from orchestrator.environment.trees.live_folder import LiveFolder
from orchestrator.environment.trees.output import OnOutput, Output
from orchestrator.environment.trees.programs import run_program
from orchestrator.environment.trees.sandbox_client import Process
from orchestrator.environment.trees.services import RunningServices
from orchestrator.environment.trees.shell import Shell, ShellExited
from orchestrator.environment.trees.shell_state import moved, quoted
from orchestrator.environment.trees.terminals import run_terminal
from orchestrator.environment.trees.tree import Confinement, FilesSeen, Tree
from orchestrator.environment.trees.variables import variables_for
from orchestrator.environment.trees.workspace_shell import WorkspaceShell

logger = logging.getLogger("orchestrate")

OUTPUT_BYTES = 1 << 20
"""How much of each stream of a command is kept, if nothing else is said."""

_MANY_ENTRIES = 500
"""A state of more is stored in a thread: it takes about 20 microseconds for each."""
_MANY_CHANGES = 2000
"""An upper folder with more is replaced by layers: each reading lists all of it."""


class LiveWorkspace:
    """The files, the shell and the services of one workspace, at work.

    Attributes:
        state: that was shown or captured last.
        seen: what the last capture saw beside the state: files left out, mapped files.
    """

    def __init__(
        self,
        tree: Tree,
        shell: Shell,
        *,
        folder: LiveFolder,
        states: States,
        confinement: Confinement,
        own: Sequence[str] = (),
    ) -> None:
        self._tree = tree
        self._folder = folder
        self._states = states
        self._confinement = confinement
        self._own = own
        self._variables, limits = variables_for(tree.place), confinement.limits.of_program()
        self._shell = WorkspaceShell(tree, shell, variables=self._variables, limits=limits)
        self._services = RunningServices(self._variables, limits)
        self._closing = asyncio.Lock()
        self._is_closed = False
        self._told: set[str] = set()  # what is left out of states
        self._ending: set[asyncio.Future[list[None]]] = set()
        self.state: State
        self.seen = FilesSeen({})

    @property
    def base(self) -> Base:
        """The folder that it is a view of."""
        return self.state.base

    @property
    def enforcement(self) -> Enforcement:
        """What holds its programs."""
        return self._tree.sandbox.enforcement

    async def begin(self, state: State) -> None:
        """Take over a tree that shows a state's files already, with a shell that is new."""
        self.state = state
        self.name([state.id])
        await self._shell.begin(self._shell_script())
        await self._continue()

    def name(self, states: Iterable[str]) -> None:
        """Keep states from the garbage collection as long as this is open."""
        self._folder.use_states(states)

    async def show(self, state: State) -> None:
        """Show a state: its files, a shell as it was, its services. All that runs is ended.

        Raises:
            StateLost: a part of it is not stored; nothing was changed.
            ServiceFailed: a service could not be started.
        """
        files = self._states.files(state)
        former = await self._shell.replace()
        if not self._tree.ends_programs:
            await self._end_with_services(former)
        try:
            await self._tree.mount(files, idle=[former.program, *self._shell.idle])
            self.state = state
            self.name([state.id])
        except FileNotFoundError as error:
            raise StateLost(state.id, f"{error.filename} is missing") from None
        finally:
            try:
                await self._shell.begin(self._shell_script())
            finally:  # all this takes longer than to show the state, which must not wait for it
                if self._tree.ends_programs:
                    self._end_with_services(former)
                self._shell.prepare()
            await self._continue()

    async def _continue(self) -> None:
        """Give the workspace what is its own, and start the state's services."""
        if self._own:
            await self._copy_up()
        if self.state.services:
            await self._settled()  # or a port could still be taken
            services = self.state.services
            await self._services.start(self._tree.sandbox, self._tree.place, services)

    async def capture(self) -> State:
        """Store the state now, while all that runs is stopped; equal states are one.

        Raises:
            WorkspaceFull: its changes are larger than its limit.
            OSError: it cannot be stored, for example as the disk is full.
        """
        self.seen = await self._tree.read(self._states.keep, idle=self._shell.idle)
        shell = await self._shell_state()
        self._require_room(self.seen)
        self._tell_left_out()
        if shell == f"cd -- {quoted(self.base.path)}\n":
            shell = ""
        self.state = await self._stored(shell)
        self.name([self.state.id])
        self._shell.is_used = False
        is_large = self._tree.num_changed > _MANY_CHANGES
        if is_large and not self._services.services and not await self.busy():
            await self.show(self.state)  # ends nothing: nothing runs
        return self.state

    def _tell_left_out(self) -> None:
        for path in self.seen.left_out:
            if path not in self._told:
                logger.warning("%s is a socket or a device: no state of the workspace has it", path)
        self._told.update(self.seen.left_out)

    async def _stored(self, shell: str) -> State:
        manifest, services = self.seen.manifest, self._services.services
        add = partial(self._states.add, self.base, manifest, shell, services)
        return await in_thread(add) if len(manifest) > _MANY_ENTRIES else add()

    async def run(
        self,
        command: str | Sequence[str],
        *,
        folder: str = "",
        given: bytes = b"",
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
        limit_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """Run a program of its own, from a folder of the workspace.

        Args:
            command: of bash; or a program with its arguments.
        """
        arguments = ["/bin/bash", "-c", command] if isinstance(command, str) else list(command)
        output, began_s = Output(limit_bytes, on_output), time.monotonic()
        code = await run_program(
            self._tree.sandbox,
            arguments,
            folder=os.path.join(self._tree.place, folder),
            variables=self._variables,
            limits=self._confinement.limits.of_program(),
            output=output,
            given=given,
            timeout_s=timeout_s,
        )
        return _completed(command, code, output, began_s)

    async def run_in_shell(
        self,
        command: str,
        *,
        timeout_s: float | None = None,
        on_output: OnOutput | None = None,
        limit_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """Run a command in the long-lived shell.

        If its time is over, or it ends the shell, a new shell has the state before the command.
        """
        output, began_s = Output(limit_bytes, on_output), time.monotonic()
        code: int | None
        try:
            async with asyncio.timeout(timeout_s):
                code = await self._shell.run(command, output)
        except TimeoutError:
            code = None
            await self._restart_shell()
        except ShellExited as exited:
            code = exited.args[0]
            await self._restart_shell()
        except asyncio.CancelledError:
            await run_to_completion(self._restart_shell())
            raise
        return _completed(command, code, output, began_s)

    async def run_terminal(
        self, terminal: int, *, prompt: str, variables: Mapping[str, str]
    ) -> int:
        """Run an interactive bash that begins as the workspace's shell was captured last.

        Args:
            terminal: a descriptor, which stays the caller's.
            prompt: its PS1.
            variables: beside those of all programs, such as TERM.
        Returns:
            Its exit code.
        """
        return await run_terminal(
            self._tree.sandbox,
            terminal,
            script=f"{self._shell.in_workspace(self._shell_script())}PS1={quoted(prompt)}\n",
            folder=self._tree.place,
            variables=self._variables | dict(variables),
            limits=self._confinement.limits.of_program(),
        )

    async def read(self, path: str) -> bytes:
        """The content of a file; raises OSError, OutsideWorkspace."""
        descriptor = await self._open(path, os.O_RDONLY)
        try:
            return await asyncio.to_thread(_read_all, descriptor)
        finally:
            os.close(descriptor)

    async def write(self, path: str, data: bytes, *, mode: int | None = None) -> None:
        """Write a file, and the folders in which it lies; raises OSError, OutsideWorkspace."""
        descriptor = await self._open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
        try:
            await asyncio.to_thread(_write_all, descriptor, data)
            if mode is not None:
                os.fchmod(descriptor, mode)
        finally:
            os.close(descriptor)

    async def add_service(self, service: Service) -> None:
        """Start a service, in place of one of the same name; raises ServiceFailed."""
        await self._services.start(self._tree.sandbox, self._tree.place, [service])

    async def busy(self) -> list[Process]:
        """What runs beside the shell itself and the services."""
        await self._settled()
        shells = await self._shell.processes()
        services = self._services.programs
        return [
            each
            for each in await self._tree.sandbox.processes()
            if each.process not in (each.program, shells.get(each.program))
            and each.program not in services
        ]

    async def require_quiet(self) -> None:
        """Raise ShellBusy if something runs that a fork could not have."""
        if busy := await self.busy():
            raise ShellBusy([(each.process, each.command) for each in busy])

    async def close(self) -> None:
        """End all that runs and remove what it wrote, but for stored states; idempotent.

        All of it is done also if a part fails or this is cancelled.

        Raises:
            OSError: what it wrote cannot be removed; another call tries again.
        """
        await run_to_completion(self._close())

    async def _close(self) -> None:
        async with self._closing:  # a second call waits for the first
            if self._is_closed:
                return
            async with AsyncExitStack() as parts:  # the last is done first
                parts.push_async_callback(self._tree.close)
                parts.push_async_callback(self._shell.abandon)
                parts.push_async_callback(self._settled)
            self._is_closed = True

    def _end_with_services(self, shell: Shell) -> asyncio.Future[list[None]]:
        return self._end(shell.close(), self._services.end(self._tree.sandbox))

    def _end(self, *work: Awaitable[None]) -> asyncio.Future[list[None]]:
        """End something beside other work; if its sandbox has died, it has ended."""
        ending = asyncio.gather(*map(_ended, work))
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        return ending

    async def _settled(self) -> None:
        """Wait until all that is to end has ended."""
        await asyncio.shield(asyncio.gather(*self._ending))

    async def _shell_state(self) -> str:
        """The script for a shell like this one; if it has ended, as it was captured last."""
        if self._shell.is_used:
            try:
                # as it would be with the workspace at the base's own path
                return moved(await self._shell.state(), self._tree.place, self.base.path)
            except ShellExited:
                await self._restart_shell()
        return self.state.shell

    async def _restart_shell(self) -> None:
        """Replace the shell by one with the state that was captured last."""
        await self._shell.restart(self._shell_script())

    def _shell_script(self) -> str:
        """Gives a new shell the state that was captured last."""
        return moved(self.state.shell, self.base.path, self._tree.place)

    async def _copy_up(self) -> None:
        """Copy folders into the upper folder whole, so that they can be renamed there."""
        for folder in self._own:
            place = quoted(folder)
            command = (
                f"test ! -d {place} || {{ cp -a --reflink=auto -- {place} {place}.copying &&"
                f" rm -rf -- {place} && mv -- {place}.copying {place}; }}"
            )
            (await self.run(command)).check()

    async def _open(self, path: str, flags: int, mode: int | None = None) -> int:
        relative = self._relative(path)
        try:
            return await self._tree.sandbox.open(relative, flags, 0o666 if mode is None else mode)
        except OSError as error:
            if error.errno == errno.EXDEV:  # a link on the way
                raise OutsideWorkspace(path, self._tree.place) from None
            raise

    def _relative(self, path: str) -> str:
        if "\0" in path:
            raise ValueError(f"{path!r} is no path: it contains a zero byte")
        place = PurePosixPath(os.path.normpath(os.path.join(self._tree.place, path)))
        if not place.is_relative_to(self._tree.place) or str(place) == self._tree.place:
            raise OutsideWorkspace(path, self._tree.place)
        return str(place.relative_to(self._tree.place))

    def _require_room(self, seen: FilesSeen) -> None:
        limit_bytes = self._confinement.limits.disk_bytes
        if limit_bytes is not None:
            size = sum(entry.size for entry in seen.manifest.values())
            if size > limit_bytes:
                raise WorkspaceFull(size, limit_bytes)


async def _ended(work: Awaitable[None]) -> None:
    with suppress(SandboxFailed):
        await work


def _read_all(descriptor: int) -> bytes:
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return file.read()


def _write_all(descriptor: int, data: bytes) -> None:
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(data)


def _completed(
    command: str | Sequence[str], code: int | None, output: Output, began_s: float
) -> Completed:
    output.require_delivered()
    shown = command if isinstance(command, str) else shlex.join(command)
    stdout, stderr = (
        output.streams[name].decode(errors="backslashreplace") for name in ("stdout", "stderr")
    )
    return Completed(
        command=shown,
        exit_code=TIMED_OUT if code is None else code,
        stdout=stdout,
        stderr=stderr,
        cut_bytes=output.cut_bytes,
        timed_out=code is None,
        seconds=time.monotonic() - began_s,
    )

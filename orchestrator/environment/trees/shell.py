"""A long-lived bash in a sandbox: commands one after another, whose state is read and restored."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence

from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.sandbox.messages import Limits
from orchestrator.environment.trees.output import Output, Pipe
from orchestrator.environment.trees.sandbox_client import Program, Sandbox
from orchestrator.environment.trees.shell_state import CAPTURE, ShellCapture

_CAPTURED = 197
_COMMANDS = 198
_STATUSES = 199
_OURS = "!"
_ITS = "."

# Commands, exit codes and the state have pipes of their own, so that no output can be taken for
# one of them. A command itself has none of these pipes: only ours that read the state have one.
# Functions may be named as any builtin: then these are still the builtins.
# A command finds the exit code of the one before it in $?. All is done in few commands, since a
# DEBUG trap is executed before each of them.
_EXECUTE = f'builtin eval "${{__command:1}}" {_COMMANDS}<&- {_STATUSES}>&-'
_ANSWER = f"builtin printf '%s\\0' \"$((__status=$?))\" >&{_STATUSES}"
_SERVE = (
    f"while IFS= builtin read -r -d '' -u {_COMMANDS} __command; do"
    ' case "${__command:0:1}${__status:-0}" in'
    f" '{_OURS}'*) {_EXECUTE} >&{_CAPTURED}; builtin printf '0\\0' >&{_STATUSES};;"
    f" '{_ITS}0') {_EXECUTE} {_CAPTURED}>&-; {_ANSWER};;"
    f' *) (builtin exit "$__status") || {_EXECUTE} {_CAPTURED}>&-; {_ANSWER};;'
    " esac; done"
)


class ShellExited(Exception):
    """The shell has ended, for example by `exit`; the argument is its exit code."""


class Shell:
    """A running bash; one command at a time."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox
        self._program: Program | None = None
        self._commands = -1
        self._pipes: dict[str, Pipe] = {}
        self._output: Output | None = None
        self._captured = bytearray()
        self._status = bytearray()
        self._answered: asyncio.Future[int] | None = None
        self._has_exited = False
        self._first = ShellCapture("", frozenset())

    async def start(self, *, folder: str, variables: Mapping[str, str], limits: Limits) -> None:
        """Start bash in a folder; raises SandboxFailed."""
        null = os.open("/dev/null", os.O_RDONLY | os.O_CLOEXEC)
        theirs, self._commands = os.pipe()
        pipes = {name: os.pipe() for name in ("stdout", "stderr", "captured", "status")}
        written = [pipes[name][1] for name in ("stdout", "stderr", "captured")]
        given = [null, *written, theirs, pipes["status"][1]]
        for name, add in (
            ("stdout", self._written("stdout")),
            ("stderr", self._written("stderr")),
            ("captured", self._captured.extend),
            ("status", self._answer),
        ):
            self._pipes[name] = Pipe(pipes[name][0], add)
        try:
            await self._start(given, folder, variables, limits)
            self._first = await self.capture()
        except ShellExited as exited:
            self.abandon()
            raise SandboxFailed(f"bash ended at once, with exit code {exited.args[0]}") from None
        except BaseException:
            self.abandon()
            raise

    async def _start(
        self, given: Sequence[int], folder: str, variables: Mapping[str, str], limits: Limits
    ) -> None:
        try:
            self._program = await self._sandbox.start(
                {
                    "arguments": ["/bin/bash", "--noprofile", "--norc", "-c", _SERVE],
                    "variables": variables,
                    "folder": folder,
                    "descriptors": [0, 1, 2, _CAPTURED, _COMMANDS, _STATUSES],
                    "limits": limits,
                    "keeps": True,
                },
                given,
            )
        finally:
            for descriptor in given:
                os.close(descriptor)

    @property
    def has_exited(self) -> bool:
        """Whether bash has ended, of which the next command will tell."""
        return self._has_exited

    @property
    def process(self) -> int:
        """The id of bash in its sandbox."""
        return self._first.process

    @property
    def program(self) -> int:
        """The id of the program, of which all that it starts is a part."""
        return 0 if self._program is None else self._program.process

    async def run(self, command: str, output: Output) -> int:
        """Execute a command and return its exit code; a cancellation does not stop it.

        Raises:
            ShellExited: the command has ended the shell, with the exit code that it holds.
            ValueError: the command contains a zero byte.
        """
        return await self._run(_ITS + command, output)

    async def _run(self, command: str, output: Output) -> int:
        if "\0" in command:
            raise ValueError("a command cannot contain a zero byte")
        assert self._answered is None, "one command at a time"
        self._output, self._answered = output, asyncio.get_running_loop().create_future()
        try:
            if self._has_exited:
                raise ShellExited
            await self._send(command.encode(errors="surrogateescape") + b"\0")
            return await self._answered
        except ShellExited:
            assert self._program is not None, "it was started"
            await self._sandbox.kill(self._program)  # what it has left running
            raise ShellExited(self._program.ended.result()) from None
        finally:
            for name in ("stdout", "stderr", "captured"):
                self._pipes[name].read_available()
            self._output = self._answered = None

    async def capture(self) -> ShellCapture:
        """The shell's state now."""
        captured = ShellCapture.parse(await self._written_by(CAPTURE))
        if not captured.functions:
            return captured
        return captured.with_definitions(await self._written_by(captured.definitions_command))

    async def state(self) -> str:
        """The script that gives a new shell this one's state."""
        return (await self.capture()).script_since(self._first)

    async def close(self) -> None:
        """End it with all that runs below it; idempotent."""
        if self._program is not None and not self._program.ended.done():
            await self._sandbox.kill(self._program)
        self.abandon()

    def abandon(self) -> None:
        """Stop reading; for a shell whose sandbox ends. Idempotent."""
        for pipe in self._pipes.values():
            pipe.close()
        if self._commands >= 0:
            os.close(self._commands)
            self._commands = -1

    async def _written_by(self, command: str) -> str:
        self._captured.clear()
        await self._run(_OURS + command, Output(0))
        return self._captured.decode(errors="surrogateescape")

    async def _send(self, data: bytes) -> None:
        """Write to bash, which reads byte by byte: a long command fills the pipe."""
        os.set_blocking(self._commands, False)
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._commands, view) :]
            except BlockingIOError:
                await asyncio.sleep(0.001)
            except BrokenPipeError:
                return  # the shell has ended: the pipe of its exit codes says so

    def _written(self, stream: str) -> Callable[[bytes], None]:
        def add(data: bytes) -> None:
            if self._output is not None and data:
                self._output.add(stream, data)

        return add

    def _answer(self, data: bytes) -> None:
        self._status += data
        self._has_exited = not data
        waiting = self._answered
        if waiting is None or waiting.done():
            return
        if not data:
            waiting.set_exception(ShellExited())
        elif self._status.endswith(b"\0"):
            waiting.set_result(int(self._status[:-1]))
            self._status.clear()

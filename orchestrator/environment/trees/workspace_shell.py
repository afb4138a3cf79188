"""The long-lived shell of a workspace, and the next one, which is started before it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.sandbox.messages import Limits
from orchestrator.environment.trees.output import Output
from orchestrator.environment.trees.shell import Shell, ShellExited
from orchestrator.environment.trees.shell_state import quoted
from orchestrator.environment.trees.tree import Tree


class WorkspaceShell:
    """Runs commands one after another, and begins anew with the state that a script gives.

    Attributes:
        is_used: it has executed commands since it began, or since this was set to false.
    """

    def __init__(
        self, tree: Tree, first: Shell, *, variables: Mapping[str, str], limits: Limits
    ) -> None:
        self._tree = tree
        self._shell = first
        self._next: asyncio.Future[Shell] | None = None
        self._variables = variables
        self._limits = limits
        self.is_used = False

    @property
    def has_exited(self) -> bool:
        """Whether bash has ended, of which the next command will tell."""
        return self._shell.has_exited

    @property
    def idle(self) -> list[int]:
        """The programs of the shells, which execute nothing between commands."""
        shells, waiting = [self._shell], self._next
        if waiting is not None and waiting.done() and not waiting.cancelled():
            shells += [] if waiting.exception() else [waiting.result()]
        return [shell.program for shell in shells]

    async def processes(self) -> dict[int, int]:
        """The ids of the shells themselves by those of their programs."""
        waiting = [] if self._next is None else [await asyncio.shield(self._next)]
        return {shell.program: shell.process for shell in (self._shell, *waiting)}

    async def run(self, command: str, output: Output) -> int:
        """Execute a command and return its exit code; raises as Shell.run."""
        code = await self._shell.run(command, output)
        self.is_used = True
        return code

    async def state(self) -> str:
        """The script that gives a new shell this one's state; raises ShellExited."""
        return await self._shell.state()

    async def begin(self, script: str) -> None:
        """Give a new shell the state that a script sets, in the workspace if not elsewhere.

        Raises:
            SandboxFailed: the script ends bash.
        """
        try:
            await self._shell.run(self.in_workspace(script), Output(0))
        except ShellExited as exited:
            reason = f"bash ended with exit code {exited.args[0]} as it was given its state"
            raise SandboxFailed(reason) from None
        self.is_used = False

    def in_workspace(self, script: str) -> str:
        """A script that begins in the workspace's folder."""
        return f"cd -- {quoted(self._tree.place)}\n{script}"

    async def restart(self, script: str) -> None:
        """End the shell with all that runs below it; a new one begins with a script."""
        former = await self.replace()
        self.prepare()
        await former.close()
        await self.begin(script)

    async def replace(self) -> Shell:
        """Have a new shell with no state; returns the former one."""
        waiting, self._next = self._next, None
        fresh = await (self._new() if waiting is None else waiting)
        former, self._shell = self._shell, fresh
        return former

    def prepare(self) -> None:
        """Start the next shell beside other work."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._new())

    async def abandon(self) -> None:
        """Stop reading from the shells; their sandbox ends."""
        self._shell.abandon()
        if self._next is not None:
            with suppress(SandboxFailed):
                (await self._next).abandon()

    async def _new(self) -> Shell:
        shell = Shell(self._tree.sandbox)
        await shell.start(folder="/", variables=self._variables, limits=self._limits)
        return shell

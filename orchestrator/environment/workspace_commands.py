"""What programs and files of a workspace are for: commands, services, reading and writing."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from orchestrator.durability.digests import digest_of
from orchestrator.durability.values import ValueCodec
from orchestrator.durations import Duration, seconds_of
from orchestrator.environment.actions import Action, run_action
from orchestrator.environment.completed import Completed
from orchestrator.environment.errors import WorkspaceBusy
from orchestrator.environment.live_workspace import OUTPUT_BYTES
from orchestrator.environment.position import Position
from orchestrator.environment.states.stored_states import Service
from orchestrator.environment.trees.output import OnOutput
from orchestrator.execution.context import current_context_or_none
from orchestrator.execution.step_execution import Reconcile, StepSpec
from store.records import Effects, StepKind
from store.state_records import EdgeKind

R = TypeVar("R")


class WorkspaceCommands:
    """The part of a Workspace that works in its present state."""

    _position: Position | None = None

    @property
    def name(self) -> str:
        """Its name, unique in its run."""
        return self.position.name

    @property
    def base(self) -> str:
        """The folder that it is a view of; its programs see it at this path."""
        return self.position.mounting.kind.base

    @property
    def state(self) -> str:
        """The id of its present state."""
        return self.position.history.state

    async def run(
        self,
        command: str | Sequence[str],
        *,
        folder: str = "",
        given: str = "",
        timeout: Duration | None = None,
        on_output: OnOutput | None = None,
        output_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """Run a program of its own; what it starts ends with it.

        Args:
            command: of bash; or a program with its arguments.
            folder: where it begins, within the workspace.
            given: its standard input.
            timeout: after which it is killed with all that it has started ("60s", or seconds).
            on_output: called with "stdout" or "stderr" and each piece of it as it comes.
            output_bytes: how much of each stream is kept; the result says how much was cut.
        Raises:
            WorkspaceBusy, StateLost, SandboxFailed.
        """
        timeout_s = None if timeout is None else seconds_of(timeout)

        async def work(here: Position) -> Completed:
            return await here.mounting.live.run(
                command,
                folder=folder,
                given=given.encode(),
                timeout_s=timeout_s,
                on_output=on_output,
                limit_bytes=output_bytes,
            )

        return await self._do(
            "run", work, (command, folder, given), annotation=Completed, is_call=True
        )

    async def shell(
        self,
        command: str,
        *,
        timeout: Duration | None = None,
        on_output: OnOutput | None = None,
        output_bytes: int = OUTPUT_BYTES,
    ) -> Completed:
        """Run a command in the workspace's one bash, which keeps its folder, variables and so on.

        Args:
            timeout: after which the shell is killed with all that it has started; a new one has
                the state that was stored last.
        Raises:
            WorkspaceBusy, StateLost, SandboxFailed.
        """
        timeout_s = None if timeout is None else seconds_of(timeout)

        async def work(here: Position) -> Completed:
            return await here.mounting.live.run_in_shell(
                command, timeout_s=timeout_s, on_output=on_output, limit_bytes=output_bytes
            )

        return await self._do("shell", work, (command,), annotation=Completed, is_call=True)

    async def read(self, path: str) -> str:
        """The text of a file, as UTF-8.

        Raises:
            OSError: it cannot be read.
            UnicodeDecodeError: it is no text; see read_bytes.
            OutsideWorkspace: the path leads out of the workspace.
        """

        async def work(here: Position) -> str:
            return (await here.mounting.live.read(path)).decode()

        return await self._do("read", work, (path,), annotation=str)

    async def read_bytes(self, path: str) -> bytes:
        """The content of a file; raises as `read`."""

        async def work(here: Position) -> str:
            return (await here.mounting.live.read(path)).hex()

        return bytes.fromhex(await self._do("read-bytes", work, (path,), annotation=str))

    async def write(self, path: str, content: str | bytes, *, mode: int | None = None) -> None:
        """Write a file, and the folders that it lies in.

        Args:
            mode: its permissions, such as 0o755; None: as they are.
        Raises:
            OSError, OutsideWorkspace.
        """
        data = content.encode() if isinstance(content, str) else content

        async def work(here: Position) -> None:
            await here.mounting.live.write(path, data, mode=mode)

        await self._do("write", work, (path, data, mode))

    async def service(
        self,
        name: str,
        command: str,
        *,
        ready: str | None = None,
        timeout: Duration = 30.0,
    ) -> None:
        """Start a program that runs beside the others: again in each fork, and in a resumed run.

        Args:
            ready: a command that succeeds once it serves, such as "curl -s localhost:8000".
            timeout: how long that may take.
        Raises:
            ServiceFailed: it has ended, or is not ready in time.
        """
        service = Service(name, command, ready, seconds_of(timeout))

        async def work(here: Position) -> None:
            await here.mounting.live.add_service(service)

        await self._do("service", work, (name, command, ready))

    @property
    def position(self) -> Position:
        """For the modules of this package: its files, processes and states."""
        if self._position is None:
            raise RuntimeError("a workspace begins with `async with workspace(...) as ws`")
        return self._position

    async def _do(
        self,
        name: str,
        work: Callable[[Position], Awaitable[R]],
        arguments: Sequence[object],
        kind: EdgeKind = EdgeKind.ACTION,
        *,
        annotation: Any = None,
        is_call: bool = False,
        may_repeat: bool = True,
        effects: Effects = Effects.ENV,
        reconcile: Reconcile | None = None,
        beside: Sequence[str] = (),
        checkpoint: str | None = None,
        is_observed: bool = True,
        keeps: Callable[[Any], str] | None = None,
        leaves: Callable[[Any], str] | None = None,
        note: Callable[[Any], str] | None = None,
    ) -> R:
        """One operation: a part of the action around it, or an action of its own."""
        position = self.position
        if position.is_acting:
            if kind is not EdgeKind.ACTION:
                raise WorkspaceBusy(position.name, position.at_work)
            return await work(position)
        action = Action(
            StepSpec(
                f"ws.{name}",
                StepKind.TOOL if is_call else StepKind.STEP,
                ValueCodec(f"{name} of a workspace", annotation),
                effects,
                reconcile=reconcile,
                arguments=digest_of(position.name, *arguments),
            ),
            kind=kind,
            repeat=work if may_repeat else None,
            beside=beside,
            checkpoint=checkpoint,
            is_observed=is_observed,
            keeps=keeps,
            leaves=leaves,
            note=note,
        )
        return await run_action(current_context_or_none(), position, action, lambda: work(position))

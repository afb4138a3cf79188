"""A workspace: a copy-on-write view of a folder with a shell, in which actions take place."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextvars import ContextVar, Token
from typing import Any, Protocol, Self, TypeVar

from orchestrator.durability.digests import digest_of
from orchestrator.durability.values import ValueCodec
from orchestrator.durations import Duration, seconds_of
from orchestrator.environment.actions import Action, run_action
from orchestrator.environment.checkpoints import Checkpoint
from orchestrator.environment.completed import Completed
from orchestrator.environment.errors import NotRevertible, WorkspaceBusy
from orchestrator.environment.history import History
from orchestrator.environment.live_workspace import OUTPUT_BYTES
from orchestrator.environment.merging.change_set import TEXT_LIMIT, ChangeSet
from orchestrator.environment.merging.resolving import OnConflict
from orchestrator.environment.mounting import Mounting
from orchestrator.environment.position import Position
from orchestrator.environment.state_applying import Applied, apply_state
from orchestrator.environment.state_merging import MergeResult, change_set, merged_state
from orchestrator.environment.states import Service
from orchestrator.environment.trees.output import OnOutput
from orchestrator.execution.context import EnvironmentsPlace, current_context_or_none
from orchestrator.execution.step_execution import Reconcile, StepSpec
from store.records import Effects, StepKind
from store.state_records import EdgeKind

R = TypeVar("R")

_current: ContextVar[Workspace | None] = ContextVar("orchestrate_workspace", default=None)


class Origin(Protocol):
    """What a workspace and its forks began with."""

    def anew(self, state: str | None = None, *, place: EnvironmentsPlace | None = None) -> Origin:
        """For another workspace of the same kind."""
        ...

    async def begin(self, workspace: Workspace) -> None:
        """Begin the first of them, and place it."""
        ...

    def register(self, position: Position) -> None:
        """A workspace or fork was placed."""
        ...

    def free_names(self, origin: str, count: int) -> list[str]:
        """Names for forks of a workspace."""
        ...

    async def end(self, position: Position) -> None:
        """End all that runs in a workspace or fork; idempotent."""
        ...


def current_workspace() -> Workspace | None:
    """The workspace of the innermost `async with` around; None outside of one."""
    return _current.get()


class Workspace:
    """Files and a shell, checkpointed, forked, rewound and merged. Made by `workspace` and `fork`.

    Each operation that a flow calls is an action: a recorded step, at the end of which the state of
    files and shell is stored. Within a tool with effects "env" the whole tool is one action. An
    action that fails or is cut off is taken back. A resumed run does not repeat recorded actions:
    the workspace is in the state that the last of them left.

    One action at a time: parts of a flow that run side by side need a fork each.

    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
        self._position: Position | None = None
        self._forks: list[Workspace] = []
        self._tokens: list[Token[Workspace | None]] = []

    async def __aenter__(self) -> Self:
        """Begin it, unless it is a fork, and make it the current one of this task.

        Raises:
            BaseRefused: the folder cannot be a base.
            StoreError: its beginning could not be recorded.
        """
        if self._position is None:
            await self._origin.begin(self)
        self._tokens.append(_current.set(self))
        return self

    async def __aexit__(self, *_: object) -> None:
        """End all that runs in it and in its forks; stored states stay."""
        _current.reset(self._tokens.pop())
        await self.close()

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

        async def work(here: Workspace) -> Completed:
            return await here.position.mounting.live.run(
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

        async def work(here: Workspace) -> Completed:
            return await here.position.mounting.live.run_in_shell(
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

        async def work(here: Workspace) -> str:
            return (await here.position.mounting.live.read(path)).decode()

        return await self._do("read", work, (path,), annotation=str)

    async def read_bytes(self, path: str) -> bytes:
        """The content of a file; raises as `read`."""

        async def work(here: Workspace) -> str:
            return (await here.position.mounting.live.read(path)).hex()

        return bytes.fromhex(await self._do("read-bytes", work, (path,), annotation=str))

    async def write(self, path: str, content: str | bytes, *, mode: int | None = None) -> None:
        """Write a file, and the folders that it lies in.

        Args:
            mode: its permissions, such as 0o755; None: as they are.
        Raises:
            OSError, OutsideWorkspace.
        """
        data = content.encode() if isinstance(content, str) else content

        async def work(here: Workspace) -> None:
            await here.position.mounting.live.write(path, data, mode=mode)

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

        async def work(here: Workspace) -> None:
            await here.position.mounting.live.add_service(service)

        await self._do("service", work, (name, command, ready))

    async def checkpoint(self, name: str = "") -> Checkpoint:
        """Name the present state, to come back to it."""
        await self._do("checkpoint", _nothing, (name,), EdgeKind.CHECKPOINT, checkpoint=name)
        return Checkpoint(name, self.state, self.name, self.position.history.moments[-1].path)

    async def rewind(self, to: Checkpoint | str, *, allow: bool | Collection[str] = False) -> None:
        """Bring back a former state; all that runs is ended.

        Effects on the outside world since then are taken back by their tools' `compensate=`, the
        last first.

        Args:
            to: a checkpoint of this workspace, or the name of its last one with that name.
            allow: names of tools whose effects may stay, or True for all.
        Raises:
            NotRevertible: there are effects since then that nothing takes back; nothing is changed.
            LookupError: it was never there.
        """
        await self._rewind_to(self._index_of(to), allow)

    async def fork(self, n: int = 1) -> list[Workspace]:
        """Workspaces that begin in this one's present state, and change nothing here.

        They end with this one at the latest; `async with fork:` ends one before.

        Raises:
            ShellBusy: something runs in the background that is no service.
            ValueError: n is below 1.
        """
        if n < 1:
            raise ValueError(f"{n} forks: give at least 1")

        async def work(here: Workspace) -> list[str]:
            await here.position.mounting.live.require_quiet()
            here.position.mounting.home.expect(here.position.mounting.kind, n)
            return self._origin.free_names(here.name, n)

        names = await self._do("fork", work, (n,), EdgeKind.FORK, annotation=list[str])
        forks = []
        for name in names:
            fork = Workspace(self._origin)
            mounting = Mounting(
                self.position.mounting.home,
                self.position.mounting.kind,
                is_trusted=self.position.mounting.is_trusted,
            )
            fork.place(name, mounting, self.position.history.forked())
            forks.append(fork)
        self._forks += forks
        return forks

    async def merge(
        self,
        *others: Workspace,
        on_conflict: OnConflict = "fail",
        check: str | None = None,
        timeout: Duration | None = None,
    ) -> MergeResult:
        """Take over what forks have changed since they had a common past with this one.

        Files are compared by path and content; lines only where both sides changed a text file.
        All or nothing.

        Args:
            on_conflict: "fail", "ours", "theirs", or a function, async or not, from a Conflict to
                what takes its place: "ours", "theirs", the bytes of the file, or an Entry.
            check: a command that must succeed afterwards, such as "pytest -q".
            timeout: of the check.
        Raises:
            MergeConflict: there are conflicts, which it lists.
            CommandFailed: the check failed.
            ValueError: they have no common past.
        """
        ancestor = self.position.history.common_with(*(other.position.history for other in others))
        theirs = [other.state for other in others]
        timeout_s = None if timeout is None else seconds_of(timeout)

        async def work(here: Workspace) -> MergeResult:
            sides = [here.state, *theirs]
            state, result = await merged_state(
                here.position.mounting.home, ancestor, sides, on_conflict=on_conflict
            )
            await here.position.mounting.live.show(state)
            if check is not None:
                (await here.position.mounting.live.run(check, timeout_s=timeout_s)).check()
            return result

        merged = await self._do(
            "merge",
            work,
            (ancestor, theirs, check),
            EdgeKind.MERGE,
            annotation=MergeResult,
            may_repeat=False,
            beside=theirs,
        )
        self.position.history.take_effects(*(other.position.history for other in others))
        return merged

    async def adopt(self, fork: Workspace) -> None:
        """Take over a fork's state, and end all forks of this workspace.

        Raises:
            ValueError: it is no fork of this workspace.
        """
        if fork not in self._forks:
            raise ValueError(f"workspace {fork.name} is no open fork of {self.name}")
        state = fork.state

        async def work(here: Workspace) -> None:
            await here.position.mounting.live.show(here.position.mounting.home.states.get(state))

        await self._do("adopt", work, (state,), EdgeKind.ADOPT, may_repeat=False, beside=[state])
        self.position.history.adopt(fork.position.history)
        await self._end_forks()

    async def diff(
        self, since: Checkpoint | str | None = None, *, text_limit: int = TEXT_LIMIT
    ) -> ChangeSet:
        """What has changed since a checkpoint, or since the workspace began.

        Args:
            text_limit: characters of the unified diff; the rest is left out, and it says so.
        """
        index = 0 if since is None else self._index_of(since)
        return await self._changes(self.position.history.moments[index].state, text_limit)

    async def changeset(self, *, text_limit: int = TEXT_LIMIT) -> ChangeSet:
        """What differs from the base."""
        return await self._changes(None, text_limit)

    async def apply(self, *, git: bool = False) -> Applied:
        """Write the changes to the base: an effect on the outside world.

        What it replaces is stored as a state, the `former` of the result: to apply that is to undo.

        Args:
            git: also changes below .git.
        Raises:
            BaseRefused: the folder cannot be written.
            BaseChanged: the base's user has changed the same files meanwhile; nothing is written.
            ApplyFailed: the disk is full, for example; what was written is taken back.
        """

        async def work(here: Workspace) -> Applied:
            home = here.position.mounting.home
            state = home.states.get(here.state)
            return await asyncio.to_thread(apply_state, home, state, git=git)

        return await self._do(
            "apply",
            work,
            (self.state, git),
            EdgeKind.APPLY,
            annotation=Applied,
            may_repeat=False,
            effects=Effects.EXTERNAL,
            reconcile=_nothing_known,
            checkpoint="before apply",
            is_observed=False,
            keeps=lambda applied: applied.former,
            leaves=lambda applied: applied.state,
        )

    async def discard(self) -> None:
        """Drop all changes and forks: the state in which the workspace began."""
        await self._end_forks()
        await self._rewind_to(0, allow=True)

    async def close(self) -> None:
        """End all that runs, here and in forks; stored states stay. Idempotent."""
        await self._end_forks()
        await self._origin.end(self.position)

    @property
    def position(self) -> Position:
        """For the modules of this package: its files, processes and states."""
        if self._position is None:
            raise RuntimeError("a workspace begins with `async with workspace(...) as ws`")
        return self._position

    @property
    def has_begun(self) -> bool:
        """Whether it was entered, or is a fork."""
        return self._position is not None

    def anew(
        self, state: str | None = None, *, place: EnvironmentsPlace | None = None
    ) -> Workspace:
        """For the modules of this package: another one with the same options, which begins later.

        Args:
            state, place: as of Beginning.
        """
        return Workspace(self._origin.anew(state, place=place))

    def place(self, name: str, mounting: Mounting, history: History) -> None:
        """For the modules of this package: it has begun."""
        self._position = Position(name, mounting, history, self)
        self._origin.register(self._position)

    async def _do(
        self,
        name: str,
        work: Callable[[Workspace], Awaitable[R]],
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
    ) -> R:
        """One operation: a part of the action around it, or an action of its own."""
        position = self.position
        if position.is_acting:
            if kind is not EdgeKind.ACTION:
                raise WorkspaceBusy(position.name, position.at_work)
            return await work(self)
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
        )
        return await run_action(current_context_or_none(), position, action, lambda: work(self))

    async def _changes(self, since: str | None, text_limit: int) -> ChangeSet:
        home = self.position.mounting.home
        before = None if since is None else home.states.get(since)
        after = home.states.get(self.state)
        return await asyncio.to_thread(change_set, home, before, after, text_limit=text_limit)

    async def _rewind_to(self, index: int, allow: bool | Collection[str]) -> None:
        target, effects = (
            self.position.history.moments[index],
            self.position.history.effects_after(index),
        )
        lasting = [
            (each.name, each.path)
            for each in effects
            if each.compensate is None and allow is not True and each.name not in (allow or ())
        ]
        if lasting:
            raise NotRevertible(self.name, lasting)

        async def work(here: Workspace) -> None:
            for each in effects:
                if each.compensate is not None:
                    await each.compensate()
            await here.position.show(index)

        await self._do("rewind", work, (target.path,), EdgeKind.REWIND, may_repeat=False)
        self.position.history.rewind_to(index)

    async def _end_forks(self) -> None:
        forks, self._forks = self._forks, []
        for fork in forks:
            await fork.close()

    def _index_of(self, to: Checkpoint | str) -> int:
        if isinstance(to, Checkpoint):
            index = self.position.history.index_of(to.path)
        else:
            index = self.position.history.index_of_checkpoint(to)
        if index is None:
            raise LookupError(f"workspace {self.name} has no checkpoint {to!r} in its past")
        return index


async def _nothing(_: Workspace) -> None:
    return None


async def _nothing_known() -> None:
    """An apply that was interrupted is done again: it completes what it had begun to write."""
    return

"""A workspace: a copy-on-write view of a folder with a shell, in which actions take place."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack, suppress
from contextvars import ContextVar, Token
from typing import Protocol, Self, TypeVar

from orchestrator.durations import Duration, seconds_of
from orchestrator.environment.actions import until_done
from orchestrator.environment.checkpoints import Checkpoint
from orchestrator.environment.errors import NotRevertible, StateLost, WorkspaceBusy
from orchestrator.environment.history import APPLY, History
from orchestrator.environment.merging.change_set import TEXT_LIMIT, ChangeSet
from orchestrator.environment.merging.resolving import OnConflict
from orchestrator.environment.mounting import Mounting
from orchestrator.environment.options import several
from orchestrator.environment.position import Position
from orchestrator.environment.state_applying import BEFORE_APPLY, Applied, apply_state
from orchestrator.environment.state_merging import MergeResult, change_set, merged_state
from orchestrator.environment.states.stored_states import Base
from orchestrator.environment.workspace_commands import WorkspaceCommands
from orchestrator.execution.context import EnvironmentsPlace
from store.records import Effects
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


class Workspace(WorkspaceCommands):
    """Files and a shell, checkpointed, forked, rewound and merged. Made by `workspace` and `fork`.

    Each operation that a flow calls is an action: a recorded step, at the end of which the state of
    files and shell is stored. Within a tool with effects "env" the whole tool is one action. An
    action that fails or is cut off is taken back. A resumed run does not repeat recorded actions:
    the workspace is in the state that the last of them left.

    One action at a time: parts of a flow that run side by side need a fork each.
    """

    def __init__(self, origin: Origin) -> None:
        self._origin = origin
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
        token = self._tokens.pop()
        with suppress(ValueError):  # it is left in another task than it was entered in
            _current.reset(token)
        await self.close()

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

        async def work(here: Position) -> list[str]:
            await here.mounting.live.require_quiet()
            here.mounting.home.expect(here.mounting.kind, n)
            return self._origin.free_names(here.name, n)

        names = await self._do(
            "fork", work, (n,), EdgeKind.FORK, annotation=list[str], note=", ".join
        )
        forks = []
        for name in names:
            fork = Workspace(self._origin)
            mounting = Mounting(self.position.mounting.home, self.position.mounting.kind)
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
            WorkspaceBusy: an action of one of them is in progress.
        """
        for other in others:
            _require_idle(other)
        ancestor = self.position.history.common_with(*(other.position.history for other in others))
        theirs = [other.state for other in others]
        timeout_s = None if timeout is None else seconds_of(timeout)

        async def work(here: Position) -> MergeResult:
            sides = [here.state, *theirs]
            state, result = await merged_state(
                here.mounting.home, ancestor, sides, on_conflict=on_conflict
            )
            await here.mounting.live.show(state)
            if check is not None:
                (await here.mounting.live.run(check, timeout_s=timeout_s)).check()
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
            WorkspaceBusy: an action of the fork is in progress.
        """
        if fork not in self._forks:
            raise ValueError(f"workspace {fork.name} is no open fork of {self.name}")
        _require_idle(fork)
        state = fork.state

        async def work(here: Position) -> None:
            await here.mounting.live.show(here.mounting.home.states.get(state))

        await self._do(
            "adopt",
            work,
            (state,),
            EdgeKind.ADOPT,
            may_repeat=False,
            beside=[state],
            leaves=lambda _: state,
        )
        others = [each.position.history for each in self._forks if each is not fork]
        self.position.history.adopt(fork.position.history, *others)
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

        async def work(here: Position) -> Applied:
            home = here.mounting.home
            state = home.states.get(here.state)
            return await until_done(asyncio.to_thread(apply_state, home, state, git=git))

        return await self._do(
            "apply",
            work,
            (self.state, git),
            EdgeKind.APPLY,
            annotation=Applied,
            may_repeat=False,
            effects=Effects.EXTERNAL,
            reconcile=_nothing_known,
            checkpoint=BEFORE_APPLY,
            is_observed=False,
            keeps=lambda applied: applied.former,
            leaves=lambda applied: applied.state,
        )

    async def discard(self) -> None:
        """Drop all forks, and all changes since the beginning or the last apply."""
        await self._end_forks()
        applied = (
            index for index, each in enumerate(self.position.history.moments) if each.name == APPLY
        )
        await self._rewind_to(max(applied, default=0), allow=True)

    async def close(self) -> None:
        """End all that runs, here and in forks; stored states stay. Idempotent."""
        await until_done(self._close())

    async def _close(self) -> None:
        try:
            await self._end_forks()
        finally:
            await self._origin.end(self.position)

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

    async def _changes(self, since: str | None, text_limit: int) -> ChangeSet:
        home = self.position.mounting.home
        before = None if since is None else home.states.get(since)
        after = home.states.get(self.state)
        if before is not None and before.base != after.base:
            raise ValueError("changes cannot be told from before an apply: the folder is another")
        return await asyncio.to_thread(change_set, home, before, after, text_limit=text_limit)

    async def _rewind_to(self, index: int, allow: bool | Collection[str]) -> None:
        history = self.position.history
        allow = allow if isinstance(allow, bool) else several("allow", allow)
        target, effects = history.moments[index], history.effects_after(index)
        if self._base_of(target.state) != self._base_of(self.state):
            effects, allow = [each for each in effects if each.name == APPLY], False
        effects = [each for each in effects if allow is not True and each.name not in (allow or ())]
        if lasting := [(each.name, each.path) for each in effects if each.compensate is None]:
            raise NotRevertible(self.name, lasting)

        async def work(here: Position) -> None:
            for each in effects:
                assert each.compensate is not None, "see above"
                await each.compensate()
                here.history.take_back(each.path)
            await here.show(index)

        # A stored state is shown as it is, so that it need not be read again.
        await self._do(
            "rewind",
            work,
            (target.path,),
            EdgeKind.REWIND,
            may_repeat=False,
            leaves=lambda _: self.position.mounting.live.state.id,
        )
        self.position.history.rewind_to(index)

    def _base_of(self, state_id: str) -> Base | None:
        """None: it is not stored, and may be computed again."""
        with suppress(StateLost):
            return self.position.mounting.home.states.get(state_id).base
        return None

    async def _end_forks(self) -> None:
        """End all forks; of several errors the last is raised."""
        forks, self._forks = self._forks, []
        async with AsyncExitStack() as closing:
            for fork in forks:
                closing.push_async_callback(fork.close)

    def _index_of(self, to: Checkpoint | str) -> int:
        if isinstance(to, Checkpoint):
            index = self.position.history.index_of(to.path)
        else:
            index = self.position.history.index_of_checkpoint(to)
        if index is None:
            raise LookupError(f"workspace {self.name} has no checkpoint {to!r} in its past")
        return index


def _require_idle(workspace: Workspace) -> None:
    if workspace.position.at_work:
        raise WorkspaceBusy(workspace.name, workspace.position.at_work)


async def _nothing(_: Position) -> None:
    return None


async def _nothing_known() -> None:
    """An apply that was interrupted is done again: it completes what it had begun to write."""
    return

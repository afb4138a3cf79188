"""How a workspace begins: `workspace` of the SDK."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from orchestrator.durability.digests import digest_of
from orchestrator.durability.values import ValueCodec
from orchestrator.environment.environments import Backend, WorkspaceKind
from orchestrator.environment.errors import BaseRefused
from orchestrator.environment.files.base_listing import list_base
from orchestrator.environment.history import History, Moment
from orchestrator.environment.homes import Home, home_at
from orchestrator.environment.merging.base_check import checked_base
from orchestrator.environment.mounting import Mounting, require_same_base
from orchestrator.environment.options import require_one_of, several
from orchestrator.environment.position import Position
from orchestrator.environment.state_changes import state_record
from orchestrator.environment.states.stored_states import Base, Service, State
from orchestrator.environment.trees.tree import Confinement, WorkspaceLimits
from orchestrator.environment.workspace import Workspace
from orchestrator.execution.context import (
    CallContext,
    EnvironmentsPlace,
    LiveRun,
    current_context_or_none,
)
from orchestrator.execution.step_execution import (
    Replayed,
    StepSpec,
    begin_or_replay,
    recorded_step,
)
from store.records import Effects, StepKind
from store.state_records import StateChange

Durability = Literal["process", "disk"]


@dataclass(frozen=True, slots=True)
class Begun:
    """The result of the step with which a workspace begins."""

    name: str
    state: str


_BEGUN = ValueCodec("the beginning of a workspace", Begun)


def workspace(
    base: str | os.PathLike[str],
    *,
    own: Sequence[str] = (),
    network: bool = False,
    hide: Sequence[str | os.PathLike[str]] = (),
    limits: WorkspaceLimits | None = None,
    services: Mapping[str, str] | Sequence[Service] = (),
    durability: Durability = "process",
    name: str | None = None,
    backend: Backend | None = None,
    state: str | None = None,
) -> Workspace:
    """A view of a folder in which all changes stay, with a shell: `async with workspace(...)`.

    The folder itself is written by `ws.apply()` alone. Programs see the view at the folder's own
    path; all else is read-only for them, but for a /tmp of their own. This confines mistakes, not
    attackers.

    Args:
        base: the folder.
        own: folders in it that are copied whole when the workspace begins, so that programs can
            rename them: rename(2) of other folders of the base gives EXDEV, which `mv` handles and
            os.rename does not.
        network: whether programs have the machine's network.
        hide: files, and folders whose files, programs cannot read; if they are there when the
            workspace is opened.
        limits: on programs and on the changes.
        services: commands by name, or Services, which run from the beginning.
        durability: "process": a checkpoint survives the end of this process; "disk": also a loss of
            power.
        name: of the workspace in its run; by default the folder's.
        backend: "overlay", or "copies" of the folder, which are slower, at another path, and work
            where the system refuses user namespaces; by default the better one that works.
        state: the id of a stored state of the folder in which it begins, such as `former` of an
            apply; by default the folder as it is.
    Raises:
        TypeError, ValueError: an option is none of those above.
        BaseRefused, when it begins: the folder is missing, is `/` or the home folder, or holds the
            store; or a folder of `own` is missing in it.
        StateLost, BaseChanged, when it begins in a state: it is not stored any more, or the folder
            has changed since.
    """
    folder = Path(base).expanduser().absolute() if os.fspath(base) else ""
    require_one_of("backend", backend, (None, *get_args(Backend)))
    require_one_of("durability", durability, get_args(Durability))
    confinement = Confinement(
        network=network,
        hide=tuple(str(Path(each).expanduser().absolute()) for each in several("hide", hide)),
        limits=limits or WorkspaceLimits(),
    )
    if isinstance(services, Mapping):
        services = [Service(name, command) for name, command in services.items()]
    beginning = Beginning(
        WorkspaceKind(str(folder), confinement, several("own", own), backend),
        name or Path(folder).name,
        tuple(services),
        durability == "disk",
        state=state,
    )
    return Workspace(beginning)


class Beginning:
    """What a workspace and its forks begin with, and the run that they belong to.

    Args:
        state: the id of the stored state in which it begins; None: the base as it is, with these
            services.
        place: where the states are, of a workspace outside of a run; None: where the settings say.
    """

    def __init__(
        self,
        kind: WorkspaceKind,
        name: str,
        services: tuple[Service, ...],
        durable: bool,
        *,
        state: str | None = None,
        place: EnvironmentsPlace | None = None,
    ) -> None:
        self._kind = kind
        self._name = name
        self._services = services
        self._durable = durable
        self._state = state
        self._place = place
        self._run: LiveRun | None = None
        self._home: Home | None = None
        self._names: set[str] = set()

    def anew(
        self, state: str | None = None, *, place: EnvironmentsPlace | None = None
    ) -> Beginning:
        """For another workspace of the same kind; see the arguments of this class."""
        parts = self._kind, self._name, self._services, self._durable
        return Beginning(*parts, state=state, place=place)

    async def begin(self, workspace: Workspace) -> None:
        """Record a workspace's beginning, or take over the recorded one.

        Raises:
            BaseRefused: the folder cannot be a base, or the given state is one of another folder.
            StateLost: the given state is not stored any more, or damaged.
            BaseChanged: the base is not as it was when the given state's workspace began.
        """
        context = current_context_or_none()
        self._run = None if context is None else context.run
        place = self._place if self._run is None else self._run.environments
        self._home = home_at(place, self._durable)
        try:
            if context is None:
                begun, path = await self._new(), "begin"
            else:
                begun, path = await self._recorded(context)
        except BaseException:
            await self._home.release()
            raise
        mounting = Mounting(self._home.environments, self._kind)
        history = History([Moment(path, "workspace", begun.state)])
        workspace.place(begun.name, mounting, history)

    def register(self, position: Position) -> None:
        """A workspace or a fork has its name: recorded actions of it are reported to it."""
        self._names.add(position.name)
        if self._run is not None:
            names = self._run.checkpoint_names
            self._run.workspaces[position.name] = lambda step: position.history.replayed(
                step, names.get(step.path)
            )

    def free_names(self, origin: str, count: int) -> list[str]:
        """Names for forks of a workspace, unique in the run."""
        taken, names, number = self._taken(), list[str](), 0
        while len(names) < count:
            number += 1
            if f"{origin}.{number}" not in taken:
                names.append(f"{origin}.{number}")
        for name in names:
            self._reserve(name)
        return names

    async def end(self, position: Position) -> None:
        """End all that runs in a workspace; idempotent."""
        try:
            await position.mounting.close()
        finally:
            self._names.discard(position.name)
            if self._run is not None:  # only its name is needed any more
                self._run.workspaces[position.name] = lambda _: None
            if not self._names and self._home is not None:
                home, self._home = self._home, None
                await home.release()

    def _taken(self) -> set[str]:
        run = self._run
        return self._names if run is None else set(run.workspaces) | run.recorded_steps.workspaces

    async def _new(self) -> Begun:
        first_state = self._base_state if self._state is None else self._given_state
        state = await asyncio.to_thread(first_state)
        name, number, taken = self._name, 1, self._taken()
        while name in taken:
            number += 1
            name = f"{self._name}-{number}"
        self._reserve(name)
        assert self._home is not None
        self._home.environments.trusted.add(state.id)
        return Begun(name, state.id)

    def _reserve(self, name: str) -> None:
        """No other workspace of the run may have this name, from now on."""
        self._names.add(name)
        if self._run is not None:
            self._run.workspaces.setdefault(name, lambda _: None)

    def _base_state(self) -> State:
        assert self._home is not None
        environments = self._home.environments
        folder = checked_base(self._kind.base, environments.root.path, environments.store)
        listing = list_base(folder)
        for own in self._kind.own:
            entry = listing.entries.get(os.path.normpath(own))
            if entry is None or entry.kind != "folder":
                raise BaseRefused(str(folder), f"own= names {own!r}, which is no folder in it")
        stored = environments.root.blobs.add(listing.to_bytes())
        base = Base(str(folder), listing.identity, stored)
        return environments.states.add(base, {}, "", self._services)

    def _given_state(self) -> State:
        assert self._home is not None
        assert self._state is not None
        environments = self._home.environments
        folder = checked_base(self._kind.base, environments.root.path, environments.store)
        state = environments.states.get(self._state)
        if state.base.path != str(folder):
            reason = f"the state {state.id[:12]} in which it is to begin is one of"
            raise BaseRefused(str(folder), f"{reason} {state.base.path!r}")
        environments.states.verify(state)
        require_same_base(environments, state)
        return state

    async def _recorded(self, context: CallContext) -> tuple[Begun, str]:
        given = [] if self._state is None else [self._state]
        arguments = digest_of(self._kind.base, self._name, *map(str, self._services), *given)
        spec = StepSpec("workspace", StepKind.STEP, _BEGUN, Effects.ENV, arguments=arguments)
        step = await begin_or_replay(context, spec)
        if isinstance(step, Replayed):
            assert step.record is not None, "it is not reconciled"
            return step.value, step.record.path
        async with recorded_step(step) as outcome:
            begun = await self._new()
            assert self._home is not None
            states = self._home.environments.states
            state = state_record(states, begun.state, context.run.clock.wall())
            outcome["result"] = _BEGUN.dump(begun)
            outcome["environment"] = StateChange(state_after=begun.state, states=[state])
        return begun, step.record.path

"""The files and processes behind a workspace: mounted when the first action needs them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path, PurePosixPath
from typing import Any

from orchestrator.environment.environments import Environments, WorkspaceKind
from orchestrator.environment.errors import BaseChanged, StateDiscarded, StateLost, WorkspaceClosed
from orchestrator.environment.files.base_listing import BaseListing, list_base
from orchestrator.environment.history import History
from orchestrator.environment.live_workspace import LiveWorkspace
from orchestrator.environment.states.stored_states import State
from orchestrator.execution.context import outside_run

logger = logging.getLogger("orchestrate")


class Mounting:
    """Shows the states of one workspace.

    A state that this process has not stored itself is verified before it is shown first.
    """

    def __init__(self, home: Environments, kind: WorkspaceKind) -> None:
        self.home = home
        self.kind = kind
        self._live: LiveWorkspace | None = None
        self._is_closed = False

    @property
    def live(self) -> LiveWorkspace:
        """The mounted workspace."""
        assert self._live is not None, "an action mounts it first"
        return self._live

    async def mount(self, history: History, position: Any) -> None:
        """Show the present state, if it is not shown.

        Args:
            position: in which actions are done again if the state is lost.
        Raises:
            StateLost: it is not stored any more, and cannot be computed again, or was discarded.
            BaseChanged: the base has changed since the workspace began.
            SandboxFailed, ServiceFailed.
        """
        if self._live is None or self._live.state.id != history.state:
            await self.show(history, len(history.moments) - 1, position)

    async def show(self, history: History, index: int, position: Any) -> None:
        """Show the state of a moment; as `mount`."""
        wanted = history.moments[index].state
        try:
            await self._show(wanted)
        except StateDiscarded:
            raise
        except StateLost as lost:
            await self._compute_again(history, index, position, lost)
        self.live.name(moment.state for moment in history.moments)

    async def roll_back(self, state_id: str) -> None:
        """Show a state again after an action that failed; raises nothing."""
        if self._live is None:
            return
        try:
            await self._live.show(self.home.states.get(state_id))
        except Exception:
            logger.warning("a workspace is unmounted, as it cannot be rolled back", exc_info=True)
            await self._unmount()

    async def capture(self) -> State:
        """Store the state that is shown now."""
        state = await self.live.capture()
        self.home.trusted.add(state.id)
        return state

    async def close(self) -> None:
        """End all that runs for good; stored states stay."""
        self._is_closed = True
        await self._unmount()

    async def _unmount(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            await live.close()

    async def _show(self, state_id: str) -> None:
        states = self.home.states
        state = states.get(state_id)
        if state_id not in self.home.trusted:
            await asyncio.to_thread(states.verify, state)
            await asyncio.to_thread(require_same_base, self.home, state)
            self.home.trusted.add(state_id)
        if self._live is not None:
            await self._live.show(state)
            return
        self._require_open()
        self._live = await self.home.open(self.kind, state)
        if self._is_closed:  # meanwhile
            await self._unmount()
        self._require_open()

    def _require_open(self) -> None:
        if self._is_closed:
            raise WorkspaceClosed(self.kind.base)

    async def _compute_again(
        self, history: History, index: int, position: Any, lost: StateLost
    ) -> None:
        """Show the nearest former state that is stored, and do again what led from it."""
        for before, way in history.ways_to(index):
            try:
                await self._show(before)
            except StateLost:
                continue
            try:
                with outside_run():  # else its steps would be recorded a second time
                    for moment in way:
                        assert moment.repeat is not None, "ways lead over what can be repeated"
                        await moment.repeat(position)
            except Exception as error:
                reason = f"{lost.args[1]}, and {moment.name} could not be done again: {error}"
                raise StateLost(lost.args[0], reason) from error
            state = await self.capture()
            logger.warning(
                "%s; it was computed again from state %s by %s%s",
                *(lost, before[:12], ", ".join(each.name for each in way)),
                "" if state.id == lost.args[0] else ", with another result",
            )
            return
        raise lost


def require_same_base(home: Environments, state: State) -> None:
    """Raise BaseChanged if the base is not as it was when a state's workspace began.

    An index of git may differ: `git status` writes it anew, with the same content.
    """
    listing = list_base(Path(state.base.path))
    if listing.identity == state.base.identity:
        return
    former = BaseListing.from_bytes(home.root.blobs.read(state.base.listing))
    changed = [each for each in listing.changed_since(former) if not _is_git_index(each)]
    if changed:
        raise BaseChanged(state.base.path, changed)


def _is_git_index(path: str) -> bool:
    return PurePosixPath(path).parts[-2:] == (".git", "index")

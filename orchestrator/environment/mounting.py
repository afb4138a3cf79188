"""The files and processes behind a workspace: mounted when the first action needs them."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

from orchestrator.environment.environments import Environments, WorkspaceKind
from orchestrator.environment.errors import BaseChanged, StateDiscarded, StateLost
from orchestrator.environment.files.base_listing import BaseListing, list_base
from orchestrator.environment.history import History
from orchestrator.environment.live_workspace import LiveWorkspace
from orchestrator.environment.states.stored_states import State

logger = logging.getLogger("orchestrate")


class Mounting:
    """Shows the states of one workspace.

    Attributes:
        is_trusted: this process has stored, or verified, what it shows; else a state is verified
            before it is shown.
    """

    def __init__(self, home: Environments, kind: WorkspaceKind, *, is_trusted: bool) -> None:
        self.home = home
        self.kind = kind
        self.is_trusted = is_trusted
        self._live: LiveWorkspace | None = None

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
            logger.warning("a workspace is closed, as it could not be rolled back", exc_info=True)
            await self.close()

    async def close(self) -> None:
        """End all that runs; stored states stay."""
        live, self._live = self._live, None
        if live is not None:
            await live.close()

    async def _show(self, state_id: str) -> None:
        states = self.home.states
        state = states.get(state_id)
        if not self.is_trusted:
            await asyncio.to_thread(states.verify, state)
            await asyncio.to_thread(require_same_base, self.home, state)
            self.is_trusted = True
        if self._live is None:
            self._live = await self.home.open(self.kind, state)
        else:
            await self._live.show(state)

    async def _compute_again(
        self, history: History, index: int, position: Any, lost: StateLost
    ) -> None:
        """Show the nearest former state that is stored, and do again what led from it."""
        for before, way in history.ways_to(index):
            try:
                await self._show(before)
            except StateLost:
                continue
            for moment in way:
                assert moment.repeat is not None, "ways lead over what can be repeated"
                await moment.repeat(position)
            state = await self.live.capture()
            logger.warning(
                "%s; it was computed again from state %s by %s%s",
                *(lost, before[:12], ", ".join(each.name for each in way)),
                "" if state.id == lost.args[0] else ", with another result",
            )
            return
        raise lost


def require_same_base(home: Environments, state: State) -> None:
    """Raise BaseChanged if the base is not as it was when a state's workspace began."""
    listing = list_base(Path(state.base.path))
    if listing.identity != state.base.identity:
        former = BaseListing.from_bytes(home.root.blobs.read(state.base.listing))
        raise BaseChanged(state.base.path, tuple(listing.changed_since(former)))

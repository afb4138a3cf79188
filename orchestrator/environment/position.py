"""Where a workspace is among its states, and whether an action is in progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from orchestrator.environment.errors import WorkspaceBusy
from orchestrator.environment.history import History, Moment
from orchestrator.environment.mounting import Mounting

_acting: ContextVar[frozenset[object]] = ContextVar("orchestrate_acting", default=frozenset())


class Position:
    """A workspace as its actions see it.

    Attributes:
        name: unique in its run.
        workspace: the Workspace itself, for tools that are called again.
    """

    def __init__(self, name: str, mounting: Mounting, history: History, workspace: Any) -> None:
        self.name = name
        self.mounting = mounting
        self.history = history
        self.workspace = workspace
        self._at_work = ""
        self._token = object()
        self._noted: list[Moment] = []

    @property
    def state(self) -> str:
        """The id of its present state."""
        return self.history.state

    @property
    def at_work(self) -> str:
        """The name of the action in progress; "" without one."""
        return self._at_work

    @property
    def is_acting(self) -> bool:
        """Whether the code here is part of an action of it."""
        return self._token in _acting.get()

    @contextmanager
    def acting(self, name: str) -> Iterator[None]:
        """An action of this name is in progress in the block.

        Raises:
            WorkspaceBusy: another one is.
        """
        if self._at_work:
            raise WorkspaceBusy(self.name, self._at_work)
        self._at_work, self._token = name, object()
        token = _acting.set(_acting.get() | {self._token})
        try:
            yield
        finally:
            _acting.reset(token)
            # A task that was started in the action may outlive it: it is no part of the next one.
            self._at_work, self._token = "", object()

    def note_effect(self, moment: Moment) -> None:
        """An effect on the outside world, within the action in progress."""
        self._noted.append(moment)

    def take_noted(self) -> None:
        """The action in progress ends: effects within it stay, also if it failed."""
        noted, self._noted = self._noted, []
        for moment in noted:
            self.history.add(moment)

    async def mount(self) -> None:
        """Show the present state, if it is not shown; raises as Mounting.mount."""
        await self.mounting.mount(self.history, self)

    async def show(self, index: int) -> None:
        """Show the state of a moment; raises as Mounting.mount."""
        await self.mounting.show(self.history, index, self)

"""Where a workspace is among its states, and whether an action is in progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from orchestrator.environment.errors import WorkspaceBusy
from orchestrator.environment.history import History
from orchestrator.environment.mounting import Mounting

_acting: ContextVar[frozenset[int]] = ContextVar("orchestrate_acting", default=frozenset())


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
        return id(self) in _acting.get()

    @contextmanager
    def acting(self, name: str) -> Iterator[None]:
        """An action of this name is in progress in the block.

        Raises:
            WorkspaceBusy: another one is.
        """
        if self._at_work:
            raise WorkspaceBusy(self.name, self._at_work)
        self._at_work = name
        token = _acting.set(_acting.get() | {id(self)})
        try:
            yield
        finally:
            _acting.reset(token)
            self._at_work = ""

    async def mount(self) -> None:
        """Show the present state, if it is not shown; raises as Mounting.mount."""
        await self.mounting.mount(self.history, self)

    async def show(self, index: int) -> None:
        """Show the state of a moment; raises as Mounting.mount."""
        await self.mounting.show(self.history, index, self)

"""The managed roots in use: one set of open workspaces for each, in each event loop."""

from __future__ import annotations

import asyncio

from orchestrator.environment.environments import Environments
from orchestrator.environment.states.root_owners import add_owner
from orchestrator.execution.context import EnvironmentsPlace
from orchestrator.settings import read_settings

_homes: dict[tuple[int, EnvironmentsPlace, bool], Home] = {}


class Home:
    """The open workspaces under one managed root; closed when the last of them has ended."""

    def __init__(self, key: tuple[int, EnvironmentsPlace, bool]) -> None:
        self._key = key
        self._num_users = 0
        self.environments = Environments(key[1].root, store=key[1].store, durable=key[2])

    def use(self) -> None:
        """One more needs it."""
        self._num_users += 1

    async def release(self) -> None:
        """One less needs it."""
        self._num_users -= 1
        if not self._num_users:
            _homes.pop(self._key, None)
            await self.environments.close()


def home_at(place: EnvironmentsPlace | None, durable: bool) -> Home:
    """The home of a managed root in this event loop, which `release` gives back.

    Args:
        place: None: that of the store that the settings name.
    """
    if place is None:
        from orchestrator.environment.states.location import (
            environments_place,
        )  # imports SQLAlchemy

        settings = read_settings()
        place = environments_place(settings.store, settings.environments)
    key = id(asyncio.get_running_loop()), place, durable
    home = _homes.get(key)
    if home is None:
        place.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        add_owner(place.root, place.url)
        home = _homes[key] = Home(key)
    home.use()
    return home

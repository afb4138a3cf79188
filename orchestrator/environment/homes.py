"""The managed roots in use: one set of open workspaces for each, in each event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orchestrator.environment.environments import Environments
from orchestrator.settings import read_settings

_homes: dict[tuple[int, Path, bool], Home] = {}


class Home:
    """The open workspaces under one managed root; closed when the last of them has ended."""

    def __init__(self, key: tuple[int, Path, bool]) -> None:
        self._key = key
        self._num_users = 0
        self.environments = Environments(key[1], durable=key[2])

    def use(self) -> None:
        """One more needs it."""
        self._num_users += 1

    async def release(self) -> None:
        """One less needs it."""
        self._num_users -= 1
        if not self._num_users:
            _homes.pop(self._key, None)
            await self.environments.close()


def home_at(root: Path | None, durable: bool) -> Home:
    """The home of a managed root in this event loop, which `release` gives back.

    Args:
        root: None: that of the store that the settings name.
    """
    if root is None:
        from orchestrator.environment.location import environments_folder  # imports SQLAlchemy

        settings = read_settings()
        root = environments_folder(settings.store, settings.environments)
    key = id(asyncio.get_running_loop()), root, durable
    home = _homes.get(key)
    if home is None:
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        home = _homes[key] = Home(key)
    home.use()
    return home

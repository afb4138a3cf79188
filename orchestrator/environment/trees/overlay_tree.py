"""The files and processes of one workspace by an overlay in a sandbox of its own."""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import os
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.sandbox.messages import Plan
from orchestrator.environment.trees.sandbox_client import Sandbox, Zygote

_PRIVATE = ("/tmp", "/dev/shm")  # noqa: S108 - each sandbox has its own


@dataclass(frozen=True, slots=True)
class ManagedRoot:
    """The folder under which all that workspaces write lies: upper folders, layers, contents.

    All of it is on one file system. A layer is never changed.
    """

    path: Path

    @property
    def layers(self) -> Path:
        """The sealed layers."""
        return self.path / "layers"

    @property
    def live(self) -> Path:
        """A folder for each open workspace."""
        return self.path / "live"


class OverlayTree:
    """A mounted stack: base, layers, and an upper folder that takes all changes."""

    def __init__(
        self, root: ManagedRoot, base: Path, *, network: bool, hide: Sequence[str]
    ) -> None:
        self._root = root
        self._base = base
        self._network = network
        self._hide = tuple(hide)
        self._folder = root.live / uuid.uuid4().hex
        self._numbers = itertools.count()
        self._lock = -1
        self.layers: tuple[str, ...] = ()
        self.upper = ""
        self.sandbox: Sandbox

    async def open(self, zygote: Zygote, layers: Sequence[str]) -> None:
        """Mount a stack in a new sandbox.

        Args:
            layers: names of layers, the uppermost first.
        Raises:
            SandboxFailed: the system refuses it.
        """
        self._folder.mkdir(parents=True)
        # Held until this process ends: the garbage collection leaves what is locked.
        self._lock = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        upper, work = self._new_upper()
        self._use(layers)
        private = _existing(_PRIVATE)
        hidden = [*self._hide, str(self._root.path)]
        plan: Plan = {
            "confinement": "namespaces",
            "at": str(self._base),
            "root": str(self._root.path),
            "layers": [f"layers/{layer}" for layer in layers],
            "upper": upper,
            "work": work,
            "network": self._network,
            "private": private,
            "hide": [folder for folder in hidden if not _is_below(folder, private)],
        }
        self.sandbox = await zygote.fork(plan)
        self.upper = upper

    @property
    def upper_folder(self) -> Path:
        """The folder that takes all changes."""
        return self._root.path / self.upper

    async def mount(self, layers: Sequence[str]) -> None:
        """Mount another stack at the same place; the changes in the upper folder are lost."""
        former = self.upper_folder
        upper, work = self._new_upper()
        self._use((*layers, *self.layers))
        await self.sandbox.mount([f"layers/{layer}" for layer in layers], upper, work)
        self.layers, self.upper = tuple(layers), upper
        self._use(layers)
        await asyncio.to_thread(remove_folder, former)

    async def close(self) -> None:
        """End all processes and remove the upper folder; idempotent."""
        if self._lock < 0:
            return
        if hasattr(self, "sandbox"):
            self.sandbox.close()
        await asyncio.to_thread(remove_folder, self._folder)
        os.close(self._lock)
        self._lock = -1

    def _new_upper(self) -> tuple[str, str]:
        """New upper and work folders, relative to the root."""
        number = next(self._numbers)
        names = [f"upper{number}", f"work{number}"]
        for name in names:
            (self._folder / name).mkdir()
        upper = self._folder / names[0]
        upper.chmod(os.stat(self._base).st_mode & 0o7777)  # what an overlay shows of its root
        return (
            str(upper.relative_to(self._root.path)),
            str((self._folder / names[1]).relative_to(self._root.path)),
        )

    def _use(self, layers: Sequence[str]) -> None:
        """Write down which layers are mounted, for the garbage collection, before they are."""
        listed = self._folder / "layers.new"
        listed.write_text("".join(f"{layer}\n" for layer in layers))
        listed.rename(self._folder / "layers")


def _is_below(place: str, folders: Sequence[str]) -> bool:
    """Whether a private folder covers a place already."""
    return any(Path(place).is_relative_to(folder) for folder in folders)


def _existing(folders: Sequence[str]) -> list[str]:
    return [folder for folder in folders if os.path.isdir(folder)]

"""The files and processes of one workspace by an overlay in a sandbox of its own."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from pathlib import Path

from orchestrator.cancellation import in_thread
from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.folder_reading import FolderReader
from orchestrator.environment.files.folder_scan import FolderScan, Keep, scan_folder
from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.files.layer_stacks import LayerStacks
from orchestrator.environment.files.layering import layered
from orchestrator.environment.files.manifest import Files
from orchestrator.environment.sandbox.messages import Plan
from orchestrator.environment.trees.live_folder import LiveFolder
from orchestrator.environment.trees.sandbox_client import Sandbox, Writer, Zygote
from orchestrator.environment.trees.tree import Confinement, FilesSeen, paths_below

_PRIVATE = ("/tmp", "/dev/shm")  # noqa: S108 - each sandbox has its own


class OverlayTree:
    """A mounted stack: base, layers, and an upper folder that takes all changes."""

    def __init__(
        self, live: LiveFolder, base: BaseFolder, stacks: LayerStacks, confinement: Confinement
    ) -> None:
        self._live = live
        self._base = base
        self._stacks = stacks
        self._confinement = confinement
        self._numbers = itertools.count()
        self._lower = Files("", {})
        self._upper = ""
        self._scan = FolderScan()
        self._removals: set[asyncio.Future[None]] = set()
        self.sandbox: Sandbox

    @property
    def ends_programs(self) -> bool:
        """A mount ends what runs."""
        return True

    @property
    def place(self) -> str:
        """The base's own path, so that absolute paths are the same in every fork."""
        return str(self._base.folder)

    async def open(self, zygote: Zygote, files: Files) -> None:
        """Mount files in a new sandbox.

        Raises:
            SandboxFailed: the system refuses it.
            FileNotFoundError: contents of the files are not stored.
        """
        layers = await self._stack_of(files)
        upper, work = self._new_upper()
        root = self._live.root.path
        private = _existing(_PRIVATE)
        hidden = [*self._confinement.hide, str(root)]
        plan: Plan = {
            "confinement": "namespaces",
            "at": self.place,
            "root": str(root),
            "layers": _places(layers),
            "upper": upper,
            "work": work,
            "network": self._confinement.network,
            "private": private,
            "hide": [
                folder
                for folder in hidden
                if _is_below(folder, [self.place]) or not _is_below(folder, private)
            ],
        }
        self.sandbox = await zygote.fork(plan)
        self._mounted(files, upper)

    async def mount(self, files: Files, *, idle: Collection[int] = ()) -> None:
        """Show other files at the same place; what the upper folder holds is lost.

        Raises:
            FileNotFoundError: contents of the files are not stored; nothing was changed.
        """
        layers = await self._stack_of(files)
        former = self._upper
        upper, work = self._new_upper()
        await self.sandbox.mount(_places(layers), upper, work, idle=idle)
        self._mounted(files, upper)
        self._remove_later(former)

    async def read(self, keep: Keep, *, idle: Collection[int] = ()) -> FilesSeen:
        """Read the changes against the base while the programs are stopped."""
        async with self.sandbox.frozen(idle=idle) as writers:
            return await in_thread(lambda: self._seen(keep, writers))

    @property
    def num_changed(self) -> int:
        """How many entries the upper folder had when it was read last."""
        return len(self._scan.entries)

    async def close(self) -> None:
        """End all processes and remove the upper folder; idempotent."""
        if hasattr(self, "sandbox"):
            self.sandbox.close()
        await asyncio.gather(*self._removals)
        await asyncio.to_thread(self._live.close)

    async def _stack_of(self, files: Files) -> tuple[str, ...]:
        """The layers of files, which the garbage collection leaves from now on."""
        if not files.manifest:
            return ()
        lower = self._lower
        return self._used(lambda: self._stacks.found(files)) or await in_thread(
            lambda: self._used(lambda: self._stacks.stack_of(files, lower))
        )

    def _used(self, find: Callable[[], tuple[str, ...]]) -> tuple[str, ...]:
        with self._live.root.collection_stopped():
            layers = find()
            self._live.use_layers(layers)
        return layers

    def _new_upper(self) -> tuple[str, str]:
        """New upper and work folders, relative to the root."""
        number = next(self._numbers)
        upper, work = self._live.path / f"upper{number}", self._live.path / f"work{number}"
        for folder in (upper, work):
            folder.mkdir()
        upper.chmod(os.stat(self._base.folder).st_mode & 0o7777)  # an overlay shows that
        root = self._live.root.path
        return str(upper.relative_to(root)), str(work.relative_to(root))

    def _mounted(self, files: Files, upper: str) -> None:
        self._lower, self._upper, self._scan = files, upper, FolderScan()

    def _seen(self, keep: Keep, writers: Sequence[Writer]) -> FilesSeen:
        reader = FolderReader(str(self._live.root.path / self._upper))
        unsafe = paths_below(self.place, writers)
        self._scan = scan_folder(reader, keep=keep, before=self._scan, unsafe=unsafe)
        manifest = layered(self._lower.manifest, self._scan, self._base)
        return FilesSeen(manifest, tuple(self._scan.left_out), writers)

    def _remove_later(self, folder: str) -> None:
        """Remove a former upper folder beside other work."""
        loop = asyncio.get_running_loop()
        removal = loop.run_in_executor(None, _try_to_remove, self._live.root.path / folder)
        self._removals.add(removal)
        removal.add_done_callback(self._removals.discard)


def _try_to_remove(folder: Path) -> None:
    """Remove a folder, unless a program that is being ended still writes in it: `close` does."""
    with suppress(OSError):
        remove_folder(folder)


def _places(layers: Sequence[str]) -> list[str]:
    """Where layers lie in the managed root."""
    return [f"layers/{layer}/files" for layer in layers]


def _is_below(place: str, folders: Sequence[str]) -> bool:
    """Whether a private folder covers a place already."""
    return any(Path(place).is_relative_to(folder) for folder in folders)


def _existing(folders: Sequence[str]) -> list[str]:
    return [folder for folder in folders if os.path.isdir(folder)]

"""The files and processes of one workspace by a copy of its base, confined by Landlock."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import TypeVar

from orchestrator.cancellation import in_thread
from orchestrator.environment.errors import SandboxFailed
from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.blob_store import BlobStore, digest_of_file
from orchestrator.environment.files.folder_reading import FolderReader
from orchestrator.environment.files.folder_scan import FolderScan, Keep, scan_folder
from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.files.manifest import Files
from orchestrator.environment.files.tree_writing import TreeWriter
from orchestrator.environment.files.whole_tree import BaseEntries, changes, list_base, shown
from orchestrator.environment.sandbox.messages import Plan
from orchestrator.environment.trees.live_folder import LiveFolder
from orchestrator.environment.trees.sandbox_client import Sandbox, Writer, Zygote
from orchestrator.environment.trees.tree import Confinement, FilesSeen, paths_below

R = TypeVar("R")


class CopyTree:
    """A copy of the base, for systems that refuse namespaces."""

    def __init__(
        self, live: LiveFolder, base: BaseFolder, blobs: BlobStore, confinement: Confinement
    ) -> None:
        self._live = live
        self._base = base
        self._blobs = blobs
        self._confinement = confinement
        self._folder = live.path / "tree"
        self._temporary = live.path / "tmp"
        self._entries = BaseEntries()
        self._manifest_paths: Collection[str] = ()
        self._scan = FolderScan()
        self._stopping = threading.Event()
        self.sandbox: Sandbox

    @property
    def ends_programs(self) -> bool:
        """What runs when other files are shown sees them change."""
        return False

    @property
    def place(self) -> str:
        """The copy's own path."""
        return str(self._folder)

    @property
    def num_changed(self) -> int:
        """Each reading looks at all files, whatever was changed."""
        return 0

    @property
    def closed(self) -> frozenset[str]:
        """What of the base cannot be read, or is hidden: it is empty here, with mode 0."""
        return frozenset(self._entries.closed)

    async def open(self, zygote: Zygote, files: Files) -> None:
        """Copy the base, show files, and start a sandbox.

        Raises:
            SandboxFailed: the system refuses it; or a single file of the base is to be hidden.
            FileNotFoundError: contents of the files are not stored.
            OSError: the base cannot be copied, for example as the disk is full.
        """
        self._require_no_hidden_file()
        for folder in (self._folder, self._temporary):
            folder.mkdir(mode=0o700)
        await self._in_thread(lambda: self._copy(files))
        plan: Plan = {
            "confinement": "landlock",
            "at": self.place,
            "root": str(self._live.root.path),
            "layers": [],
            "upper": "",
            "work": "",
            "network": self._confinement.network,
            "private": [str(self._temporary)],
            "hide": self._confinement.hide,
        }
        self.sandbox = await zygote.fork(plan)

    async def mount(self, files: Files, *, idle: Collection[int] = ()) -> None:
        """Show other files at the same place; only those that differ are written.

        Raises:
            FileNotFoundError: contents of the files are not stored; nothing was changed.
        """
        async with self.sandbox.frozen(idle=idle):
            await self._in_thread(lambda: self._change_to(files))

    async def read(self, keep: Keep, *, idle: Collection[int] = ()) -> FilesSeen:
        """Read the changes against the base while the programs are stopped."""
        async with self.sandbox.frozen(idle=idle) as writers:
            return await self._in_thread(lambda: self._seen(keep, writers))

    async def close(self) -> None:
        """End all processes and remove the copy; idempotent."""
        self._stopping.set()
        if hasattr(self, "sandbox"):
            await self.sandbox.end()  # before its files are removed: nothing else ends what runs
        await asyncio.to_thread(self._live.close)

    def _require_no_hidden_file(self) -> None:
        for each in self._confinement.hide:
            path = Path(each)
            if path.is_file() and path.resolve().is_relative_to(self._base.folder.resolve()):
                raise SandboxFailed(
                    f"a copy cannot be without the single file {each}: hide a folder"
                )

    def _copy(self, files: Files) -> None:
        hide = [*self._confinement.hide, str(self._live.root.path)]
        self._entries = list_base(str(self._base.folder), hide)
        self._show(files, FolderScan())

    def _change_to(self, files: Files) -> None:
        self._show(files, self._scanned(lambda file, _: digest_of_file(file), ()))
        for each in self._temporary.iterdir():
            remove_folder(each) if each.is_dir() and not each.is_symlink() else each.unlink()

    def _seen(self, keep: Keep, writers: Sequence[Writer]) -> FilesSeen:
        self._scan = self._scanned(keep, paths_below(self.place, writers))
        closed = self._entries.closed.difference(self._manifest_paths)
        manifest, lost = changes(self._scan, self._entries, self._base, closed)
        return FilesSeen(manifest, sorted({*self._scan.left_out, *lost}), writers)

    def _show(self, files: Files, now: FolderScan) -> None:
        writer = TreeWriter(self.place, self._base, self._entries, self._blobs, self._stopping)
        self._scan = writer.show(shown(self._entries, files.manifest), now)
        self._manifest_paths = files.manifest.keys()

    def _scanned(self, keep: Keep, unsafe: Collection[str]) -> FolderScan:
        reader = FolderReader(self.place)
        return scan_folder(reader, keep=keep, before=self._scan, unsafe=unsafe)

    async def _in_thread(self, work: Callable[[], R]) -> R:
        """The result of work in a thread, which is waited for also at a cancellation."""
        has_sandbox = hasattr(self, "sandbox")  # without one its files are of no use
        return await in_thread(work, on_cancel=None if has_sandbox else self._stopping.set)

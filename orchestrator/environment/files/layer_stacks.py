"""Which layers show a manifest above its base: found, or built from stored contents."""

from __future__ import annotations

import os
import threading
from functools import cache
from pathlib import Path

from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.blob_store import BlobStore
from orchestrator.environment.files.collection_lock import exclusively
from orchestrator.environment.files.layer_building import build_layer, remove_folder
from orchestrator.environment.files.layering import may_have
from orchestrator.environment.files.manifest import Entry, Files, Manifest, parents_of

MAX_DEPTH = 64
"""Layers of one stack. To mount 65 takes 1.4 ms, 499 take 14 ms, and the kernel refuses 501."""


class LayerStacks:
    """The layers in a folder, each with a list of those that belong below it.

    A layer is never changed once it has its name, and can be built again from stored contents.
    """

    def __init__(self, folder: Path, blobs: BlobStore, base: BaseFolder) -> None:
        self._folder = folder
        self._blobs = blobs
        self._base = base
        self._building = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True)

    def stack_of(self, files: Files, near: Files) -> tuple[str, ...]:
        """Names of the layers that show these files, the uppermost first.

        Args:
            near: files whose stack may exist; if little differs, the new layer lies above it.
        Raises:
            FileNotFoundError: a file's content is not stored.
        """
        if not files.manifest:
            return ()
        with self._building:
            return self.found(files) or self._built(files, near)

    def found(self, files: Files) -> tuple[str, ...]:
        """As `stack_of`, but () if they were not built yet; quick."""
        return self._found(files.key)

    def _found(self, key: str) -> tuple[str, ...]:
        below = layers_below(self._folder, key)
        if below is None or any(layers_below(self._folder, each) is None for each in below):
            return ()
        return (key, *below)

    def _built(self, files: Files, near: Files) -> tuple[str, ...]:
        below = self._found(near.key)
        part = _difference(near.manifest, files.manifest, self._base) if below else None
        if part is None or len(below) >= MAX_DEPTH or 2 * len(part) > len(files.manifest):
            part, below = dict(files.manifest), ()
        unfinished = self._folder / f"{files.key}.{os.urandom(6).hex()}.new"
        try:
            build_layer(
                unfinished / "files", part, self._blobs, self._base.folder, whole=files.manifest
            )
            (unfinished / "below").write_text(" ".join([_boot(), *below]))
            self._put(unfinished, self._folder / files.key)
        except BaseException:
            remove_folder(unfinished)
            raise
        return self._found(files.key)

    def _put(self, unfinished: Path, folder: Path) -> None:
        """Give a finished layer its name, unless another process was faster."""
        with exclusively(self._folder.with_suffix(".lock")):
            if self._found(folder.name):
                remove_folder(unfinished)
                return
            if folder.exists():  # of a former boot, or one below it is
                folder.rename(folder.with_name(f"{folder.name}.{os.urandom(6).hex()}.new"))
            unfinished.rename(folder)


def layers_below(folder: Path, layer: str) -> tuple[str, ...] | None:
    """The layers that belong below one; None: it is not there, or its content is not certain.

    Layers are not synced: what a loss of power has left of one cannot be told from the whole.
    """
    try:
        boot, *below = (folder / layer / "below").read_text().split()
    except (FileNotFoundError, ValueError):
        return None
    return tuple(below) if boot == _boot() else None


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _difference(before: Manifest, after: Manifest, base: BaseFolder) -> dict[str, Entry] | None:
    """What a layer above those of `before` must hold to show `after`.

    None: it cannot, as something is as in the base again, whose content is not stored; or a folder
    has become something else or the other way round, below which layers would be mixed.
    """
    part = {path: entry for path, entry in after.items() if before.get(path) != entry}
    for path in sorted(before):  # parents before what lies in them
        new = after.get(path)
        if new is not None:
            if (before[path].kind == "folder") != (new.kind == "folder"):
                return None
        elif not _is_covered(path, after) and not _is_covered(path, part):
            if may_have(base, path):
                return None
            part[path] = Entry("gone")
    return part


def _is_covered(path: str, manifest: Manifest) -> bool:
    """Whether a folder in which a path would lie is gone, or no folder any more."""
    return any(
        parent in manifest and manifest[parent].kind != "folder" for parent in parents_of(path)
    )

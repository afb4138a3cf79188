"""The manifest of a state from the state before it and what an upper folder holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from orchestrator.environment.files.folder_scan import FolderScan
from orchestrator.environment.files.manifest import Entry, Kind, Manifest, parents_of


class BaseTree(Protocol):
    """The base, as a state is compared with it."""

    def kind(self, path: str) -> Kind | None:
        """What the base has at a path; None: nothing that a state can hold."""
        ...

    def is_same(self, path: str, entry: Entry) -> bool:
        """Whether the base has this at a path, times aside."""
        ...

    def entry(self, path: str) -> Entry | None:
        """What the base has at a path, with the digest of a file; None as for `kind`."""
        ...

    def read(self, path: str) -> bytes:
        """The content of a file of the base."""
        ...

    def names(self, path: str) -> Iterable[str]:
        """The names in a folder of the base; none if it is no folder."""
        ...


def layered(before: Manifest, upper: FolderScan, base: BaseTree) -> dict[str, Entry]:
    """The canonical manifest of the tree that an overlay shows.

    Args:
        before: of the layers below the upper folder.
        upper: what the upper folder holds; what is left out of it takes the place of what was
            there before.
    """
    entries = {**upper.entries, **dict.fromkeys(upper.left_out, Entry("gone"))}
    hiding = _hiding_folders(before, upper, base)

    def is_covered(path: str) -> bool:
        return path in entries or any(
            parent in hiding or (parent in entries and entries[parent].kind != "folder")
            for parent in parents_of(path)
        )

    manifest = {path: entry for path, entry in before.items() if not is_covered(path)}
    for path, entry in entries.items():
        if entry.kind == "gone":
            if base.kind(path) is not None:
                manifest[path] = Entry("gone")
        elif not base.is_same(path, entry):
            manifest[path] = entry
    for folder in hiding:
        for name in base.names(folder):
            below = f"{folder}/{name}"
            if below not in entries and base.kind(below) is not None:
                manifest[below] = Entry("gone")
    return manifest


def _hiding_folders(before: Manifest, upper: FolderScan, base: BaseTree) -> set[str]:
    """Folders of the upper in which the overlay shows nothing of the layers below."""
    hiding: set[str] = set()
    for path in sorted(upper.entries):  # parents before what lies in them
        if upper.entries[path].kind == "folder" and (
            path in upper.opaque
            or path.rpartition("/")[0] in hiding
            or not _was_folder(path, before, base)
        ):
            hiding.add(path)
    return hiding


def _was_folder(path: str, before: Manifest, base: BaseTree) -> bool:
    """Whether the layers below the upper folder show a folder at a path."""
    for parent in parents_of(path):
        entry = before.get(parent)
        if entry is not None and entry.kind != "folder":
            return False
    entry = before.get(path)
    return (base.kind(path) if entry is None else entry.kind) == "folder"

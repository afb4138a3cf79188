"""The manifest of a state from the state before it and what an upper folder holds."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from orchestrator.environment.folder_scan import FolderScan
from orchestrator.environment.manifest import Entry, Manifest, parents_of


class BaseTree(Protocol):
    """The base, as a state is compared with it."""

    def entry(self, path: str) -> Entry | None:
        """What the base has at a path, with a file's content; None: nothing."""
        ...

    def names(self, path: str) -> Iterable[str]:
        """The names in a folder of the base; none if it is no folder."""
        ...


def layered(before: Manifest, upper: FolderScan, base: BaseTree) -> dict[str, Entry]:
    """The canonical manifest of the tree that an overlay shows.

    Args:
        before: of the layers below the upper folder.
        upper: what the upper folder holds.
    """
    entries = upper.entries
    hiding = _hiding_folders(before, upper, base)

    def is_covered(path: str) -> bool:
        return path in entries or any(
            parent in hiding or (parent in entries and entries[parent].kind != "folder")
            for parent in parents_of(path)
        )

    manifest = {path: entry for path, entry in before.items() if not is_covered(path)}
    _separate_links(manifest, before)
    for path, entry in entries.items():
        of_base = base.entry(path)
        if entry.kind == "gone":
            if of_base is not None:
                manifest[path] = entry
        elif of_base is None or _differs(entry, of_base):
            manifest[path] = entry
    for folder in hiding:
        for name in base.names(folder):
            below = f"{folder}/{name}"
            if below not in entries:
                manifest[below] = Entry("gone")
    for path in [path for path in entries if path in manifest]:
        first = manifest[path].same_as
        if first:
            manifest[first] = entries[first]
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
    entry = before.get(path) or base.entry(path)
    return entry is not None and entry.kind == "folder"


def _separate_links(manifest: dict[str, Entry], before: Manifest) -> None:
    """Give hard links of which the first path is covered now another first path.

    A write to one of several names of a lower file changes only that name: overlayfs copies it up.
    """
    firsts: dict[str, str] = {}
    for path in sorted(manifest):
        entry = manifest[path]
        if entry.same_as and entry.same_as not in manifest and entry.same_as in before:
            first = firsts.setdefault(entry.same_as, path)
            manifest[path] = entry._replace(same_as="" if first == path else first)


def _differs(one: Entry, other: Entry) -> bool:
    """Whether two entries differ in more than their times."""
    kept = (one.kind, one.mode, one.content, one.same_as)
    return kept != (other.kind, other.mode, other.content, "")

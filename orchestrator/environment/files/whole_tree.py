"""The files of a workspace that holds a copy of its base, compared with the base."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from orchestrator.environment.files.folder_reading import FolderReader, Listed
from orchestrator.environment.files.folder_scan import FolderScan, kind_of
from orchestrator.environment.files.layering import BaseTree
from orchestrator.environment.files.manifest import Entry, Manifest, parents_of

AS_BASE = ""
"""In place of the digest of a file's content: as in the base, which was not hashed."""

Shown = Mapping[str, Entry]
"""All that a folder shows, by path; nothing is "gone"."""


@dataclass(slots=True)
class BaseEntries:
    """What a base holds when it is copied.

    Attributes:
        entries: files with the content AS_BASE.
        closed: files and folders that this user may not read, or that are hidden. Their copies are
            empty, with mode 0, and cannot be changed, but removed or replaced.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    closed: set[str] = field(default_factory=set)

    def close(self, path: str) -> None:
        """Take a path as unreadable."""
        self.closed.add(path)
        self.entries[path] = self.entries[path]._replace(mode=0, size=0)


def list_base(folder: str, hide: Collection[str]) -> BaseEntries:
    """What a base holds, by names and attributes; no file is read.

    Args:
        hide: folders, absolute.
    Raises:
        OSError: the base itself cannot be listed.
    """
    reader, base = FolderReader(folder, opens_up=False), BaseEntries()
    hidden = {os.path.realpath(each) for each in hide}
    real = os.path.realpath(folder)
    for each in reader.list(""):
        _add_listed(base, each.name, each)
    waiting = [path for path, entry in base.entries.items() if entry.kind == "folder"]
    while waiting:
        parent = waiting.pop()
        try:
            if os.path.join(real, parent) in hidden:
                raise PermissionError
            listed = reader.list(parent)
        except PermissionError:
            base.close(parent)
            continue
        for each in listed:
            path = f"{parent}/{each.name}"
            if _add_listed(base, path, each) == "folder":
                waiting.append(path)
    return base


def shown(base: BaseEntries, manifest: Manifest) -> dict[str, Entry]:
    """All that a state shows, sorted by path."""
    found: dict[str, Entry] = {}
    for path in sorted(base.entries.keys() | manifest.keys()):
        entry = manifest.get(path) or base.entries[path]
        parent = path.rpartition("/")[0]
        is_placed = not parent or (parent in found and found[parent].kind == "folder")
        if is_placed and entry.kind != "gone":
            found[path] = entry
    return found


def changes(
    scan: FolderScan, base: BaseEntries, folder: BaseTree, closed: Collection[str]
) -> tuple[dict[str, Entry], list[str]]:
    """What a folder holds as a canonical manifest.

    Args:
        scan: files that are as they were copied have the content AS_BASE.
        folder: the base, for files that were touched and may be as before.
        closed: those of `base.closed` that are shown as in the base.
    Returns:
        The manifest, and paths that cannot be kept: what was changed in place, or made below what
        this user may not read in the base; devices.
    """
    manifest: dict[str, Entry] = {}
    lost: list[str] = []
    for path, entry in scan.entries.items():
        original = base.entries.get(path)
        if original is not None and is_same(original, entry):
            continue
        if entry.kind == "gone" or _is_closed(path, entry, base, closed):
            lost.append(path)
        elif not folder.is_same(path, entry):
            manifest[path] = entry
    for path in base.entries:
        parent = path.rpartition("/")[0]
        is_placed = not parent or (parent in scan.entries and is_folder(scan.entries[parent]))
        if is_placed and path not in scan.entries:
            manifest[path] = Entry("gone")
    return manifest, sorted(lost)


def is_same(one: Entry, other: Entry) -> bool:
    """Whether two entries have the same kind, mode and content; times do not count."""
    return (one.kind, one.content) == (other.kind, other.content) and (
        one.mode == other.mode or one.kind == "link"
    )


def is_folder(entry: Entry) -> bool:
    """Whether an entry is a folder."""
    return entry.kind == "folder"


def _is_closed(path: str, entry: Entry, base: BaseEntries, closed: Collection[str]) -> bool:
    if path in closed:
        return entry.kind == base.entries[path].kind
    return bool(closed) and any(
        parent in closed and is_folder(base.entries[parent]) for parent in parents_of(path)
    )


def _add_listed(base: BaseEntries, path: str, listed: Listed) -> str | None:
    kind = kind_of(listed)
    if kind is None or kind == "gone":
        return None
    size = listed.size if kind == "file" else 0
    mode = stat.S_IMODE(listed.mode)
    base.entries[path] = Entry(kind, mode, listed.target, size, listed.mtime_ns)
    return kind

"""What a state shows: its manifest on top of the base."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict

from orchestrator.environment.files.layering import BaseTree
from orchestrator.environment.files.manifest import Entry, Kind, Manifest, parents_of


class StateView:
    """The tree of a state; "" is the workspace's own folder."""

    def __init__(self, manifest: Manifest, base: BaseTree) -> None:
        self.manifest = manifest
        self._base = base
        self._paths = sorted(manifest)
        self._listed: defaultdict[str, set[str]] = defaultdict(set)
        for path in self._paths:
            for each in (*parents_of(path), path):
                parent, _, name = each.rpartition("/")
                self._listed[parent].add(name)

    def is_hidden(self, path: str) -> bool:
        """Whether the path lies in something that this state does not have as a folder."""
        return any(
            parent in self.manifest and self.manifest[parent].kind != "folder"
            for parent in parents_of(path)
        )

    def kind(self, path: str) -> Kind | None:
        """What there is at a path; None: nothing."""
        if not path:
            return "folder"
        if self.is_hidden(path):
            return None
        entry = self.manifest.get(path)
        if entry is None:
            return self._base.kind(path)
        return None if entry.kind == "gone" else entry.kind

    def entry(self, path: str) -> Entry | None:
        """What there is at a path, as for `kind`; may read a file of the base for its digest."""
        if self.kind(path) is None:
            return None
        return self.manifest.get(path) or self._base.entry(path)

    def listed_names(self, folder: str) -> set[str]:
        """Those names in a folder at or below which the manifest has something."""
        return self._listed.get(folder, set())

    def names(self, folder: str) -> set[str]:
        """All names in a folder; none if there is no folder."""
        if self.kind(folder) != "folder":
            return set()
        names = {*self._base.names(folder), *self.listed_names(folder)}
        return {name for name in names if self.kind(joined(folder, name)) is not None}

    def part(self, path: str) -> dict[str, Entry]:
        """What the manifest has at a path and below."""
        found = {path: self.manifest[path]} if path in self.manifest else {}
        first, after = (bisect_left(self._paths, f"{path}{end}") for end in ("/", "0"))
        return found | {each: self.manifest[each] for each in self._paths[first:after]}


def joined(folder: str, name: str) -> str:
    """The path of a name in a folder."""
    return f"{folder}/{name}" if folder else name


def is_same_entry(one: Entry | None, other: Entry | None) -> bool:
    """Whether two entries have the same kind, mode and content; times do not count."""
    if one is None or other is None:
        return one is other
    if one.kind != other.kind or one.content != other.content:
        return False
    return one.mode == other.mode or one.kind in ("link", "gone")

"""What differs between two states of one base."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

from orchestrator.environment.files.layering import BaseTree
from orchestrator.environment.files.manifest import Entry, Manifest
from orchestrator.environment.files.state_view import StateView, is_same_entry, joined

DifferenceKind = Literal["added", "changed", "deleted", "mode", "kind"]


class Difference(NamedTuple):
    """A path that differs between two states.

    Attributes:
        kind: "mode": only the permissions differ; "kind": a file is a link or a folder now, and so
            on.
        before, after: what is there; None: nothing.
    """

    path: str
    kind: DifferenceKind
    before: Entry | None
    after: Entry | None


def differences(
    before: Manifest, after: Manifest, base: BaseTree, *, in_deleted: bool = False
) -> list[Difference]:
    """All paths that differ between two states, sorted. Times do not count.

    A folder that was added is listed with all in it, one that was deleted is one path.

    Args:
        in_deleted: also list what lay in folders that were deleted.
    """
    walk = _Walk(StateView(before, base), StateView(after, base), in_deleted)
    return sorted(walk.changed_in(""))


class _Walk:
    """Compares two trees; what neither manifest lists is the same in both."""

    def __init__(self, before: StateView, after: StateView, in_deleted: bool) -> None:
        self._before, self._after, self._in_deleted = before, after, in_deleted

    def changed_in(self, folder: str) -> Iterator[Difference]:
        """The differences in a folder that both trees have."""
        for name in self._before.listed_names(folder) | self._after.listed_names(folder):
            yield from self._changed_at(joined(folder, name))

    def _changed_at(self, path: str) -> Iterator[Difference]:
        entries = self._before.entry(path), self._after.entry(path)
        before, after = entries
        kind = _kind(before, after)
        if kind is not None:
            yield Difference(path, kind, before, after)
        is_folder = [entry is not None and entry.kind == "folder" for entry in entries]
        if all(is_folder):
            yield from self.changed_in(path)
        elif is_folder[1]:
            yield from self._all_in(path, self._after, "added")
        elif is_folder[0] and self._in_deleted:
            yield from self._all_in(path, self._before, "deleted")

    def _all_in(
        self, folder: str, view: StateView, kind: Literal["added", "deleted"]
    ) -> Iterator[Difference]:
        for name in view.names(folder):
            path = joined(folder, name)
            entry = view.entry(path)
            yield Difference(path, kind, *((entry, None) if kind == "deleted" else (None, entry)))
            if entry is not None and entry.kind == "folder":
                yield from self._all_in(path, view, kind)


def _kind(before: Entry | None, after: Entry | None) -> DifferenceKind | None:
    if is_same_entry(before, after):
        return None
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    if before.kind != after.kind:
        return "kind"
    return "mode" if before.content == after.content else "changed"

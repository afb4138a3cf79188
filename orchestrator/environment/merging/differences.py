"""What differs between two states of one base."""

from __future__ import annotations

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
    views = StateView(before, base), StateView(after, base)
    found: list[Difference] = []
    paths = _children("", *views, in_deleted=in_deleted)
    while paths:
        path = paths.pop()
        former, latter = (view.entry(path) for view in views)
        kind = _kind(former, latter)
        if kind is not None:
            found.append(Difference(path, kind, former, latter))
        paths += _children(path, *views, in_deleted=in_deleted)
    return sorted(found, key=lambda difference: difference.path)


def _children(folder: str, before: StateView, after: StateView, *, in_deleted: bool) -> list[str]:
    """The paths in a folder of either state at or below which the two may differ."""
    kinds = before.kind(folder), after.kind(folder)
    match kinds:
        case "folder", "folder":  # what neither manifest lists is the same in both
            names = before.listed_names(folder) | after.listed_names(folder)
        case _, "folder":
            names = after.names(folder)
        case "folder", _ if in_deleted:
            names = before.names(folder)
        case _:
            names = set()
    return [joined(folder, name) for name in names]


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

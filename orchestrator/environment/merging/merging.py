"""The three-way merge of states: of their files, path by path, and of their shells."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from orchestrator.environment.conflicts import Conflict
from orchestrator.environment.files.layering import BaseTree
from orchestrator.environment.files.manifest import Manifest
from orchestrator.environment.merging.contents import Read
from orchestrator.environment.merging.resolving import OnConflict, Resolution, resolve
from orchestrator.environment.merging.tree_merge import TreeMerge

Keep = Callable[[bytes], str]
"""Stores a content; returns its digest."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The files of a merged state.

    Attributes:
        manifest: canonical. Where there are conflicts it has what our side has.
        conflicts: those without a resolution, by path.
        merged_paths: files whose changes were merged by lines.
    """

    manifest: Manifest
    conflicts: tuple[Conflict, ...] = ()
    merged_paths: tuple[str, ...] = ()


def merge_manifests(
    base_manifest: Manifest,
    ours: Manifest,
    theirs: Manifest,
    *,
    base: BaseTree,
    read: Read,
    keep: Keep,
    resolutions: Mapping[str, Resolution] | None = None,
    side: int = 1,
) -> Merged:
    """Merge the files of two states of one base.

    What only one side changed is taken, whole folders too. A file that both changed is merged by
    lines if it is a text in all three. Times do not count as changes; of two equal files the later
    time is taken.

    Args:
        base_manifest: of the common ancestor.
        read: reads contents of all three; called only for texts that both sides changed.
        resolutions: what takes the place of conflicts, by path: see `resolve`.
        side: the number of `theirs` in the conflicts.
    """
    merge = TreeMerge((base_manifest, ours, theirs), base, read, keep, resolutions or {}, side)
    merge.run()
    return Merged(
        dict(sorted(merge.result.items())),
        tuple(sorted(merge.conflicts, key=lambda conflict: conflict.path)),
        tuple(sorted(merge.merged_paths)),
    )


async def merge_sides(
    base_manifest: Manifest,
    sides: Sequence[Manifest],
    *,
    base: BaseTree,
    read: Read,
    keep: Keep,
    on_conflict: OnConflict = "fail",
) -> Merged:
    """Merge the files of any number of states, from left to right.

    In a conflict `ours` is what the sides before have together.

    Raises:
        MergeConflict: two of them conflict, and `on_conflict` is "fail".
        InvalidResolution: `on_conflict` returned something that cannot take a conflict's place.
    """
    manifest, paths = (sides[0] if sides else base_manifest), set[str]()
    for number, side in enumerate(sides[1:], start=1):
        merge = partial(
            merge_manifests,
            base_manifest,
            manifest,
            side,
            base=base,
            read=read,
            keep=keep,
            side=number,
        )
        merged = merge()
        if merged.conflicts:
            merged = merge(resolutions=await resolve(merged.conflicts, on_conflict))
        manifest = merged.manifest
        paths |= set(merged.merged_paths)
    return Merged(manifest, (), tuple(sorted(paths)))


class MergedShell(NamedTuple):
    """The shell of a merged state.

    Attributes:
        script: see `ShellCapture.script_since`.
        is_disputed: both sides changed the shell, in different ways; the script is ours.
    """

    script: str
    is_disputed: bool


def merge_shell(ancestor: str, ours: str, theirs: str) -> MergedShell:
    """Merge the shells of two states: what only one side changed is taken, else ours.

    A dispute stops no merge: variables and the working folder are how a side worked, the files are
    what it made. The statements of both sides together could be a shell that neither ever had.
    """
    is_disputed = ours not in (ancestor, theirs) and theirs != ancestor
    return MergedShell(theirs if ours == ancestor else ours, is_disputed)

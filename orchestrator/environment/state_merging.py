"""Merges and compares stored states of one base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from orchestrator.environment.environments import Environments
from orchestrator.environment.errors import BaseChanged
from orchestrator.environment.merging.change_set import ChangeSet, changes_between
from orchestrator.environment.merging.contents import reader
from orchestrator.environment.merging.differences import differences
from orchestrator.environment.merging.merging import merge_shell, merge_sides
from orchestrator.environment.merging.resolving import OnConflict
from orchestrator.environment.states.stored_states import State


@dataclass(frozen=True, slots=True)
class MergeResult:
    """What a merge did.

    Attributes:
        merged_paths: files in which lines of several sides were put together.
        is_shell_disputed: several sides changed the shell: the workspace keeps its own.
    """

    merged_paths: tuple[str, ...]
    is_shell_disputed: bool = False


async def merged_state(
    home: Environments, ancestor_id: str, side_ids: Sequence[str], *, on_conflict: OnConflict
) -> tuple[State, MergeResult]:
    """Merge states, and store the result; the services are those of the first.

    Raises:
        StateLost: one of them is not stored any more.
        BaseChanged: one of them was applied meanwhile, and another one was not.
        MergeConflict, InvalidResolution: as `merge_sides`.
    """
    ancestor, *sides = (home.states.get(each) for each in (ancestor_id, *side_ids))
    if any(side.base != ancestor.base for side in sides):
        raise BaseChanged(ancestor.base.path, ())  # one of them was applied meanwhile
    base = home.base_folder(ancestor.base.path)
    merged = await merge_sides(
        home.states.manifest(ancestor),
        [home.states.manifest(side) for side in sides],
        base=base,
        read=reader(home.root.blobs, base, ancestor.base.path),
        keep=home.root.blobs.add,
        on_conflict=on_conflict,
    )
    shell, is_disputed = sides[0].shell, False
    for side in sides[1:]:
        shell, disputed = merge_shell(ancestor.shell, shell, side.shell)
        is_disputed |= disputed
    state = home.states.add(ancestor.base, merged.manifest, shell, sides[0].services)
    return state, MergeResult(merged.merged_paths, is_disputed)


def change_set(
    home: Environments, before: State | None, after: State, *, text_limit: int
) -> ChangeSet:
    """What differs between two states; raises StateLost, BaseChanged.

    Args:
        before: None: the base.
    """
    base = home.base_folder(after.base.path)
    manifests = {} if before is None else home.states.manifest(before), home.states.manifest(after)
    return changes_between(
        differences(*manifests, base),
        base=after.base.path,
        base_identity=after.base.identity,
        read=reader(home.root.blobs, base, after.base.path),
        text_of=differences(*manifests, base, in_deleted=True),
        text_limit=text_limit,
    )

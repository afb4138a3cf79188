"""What takes the place of a conflict, as the caller of a merge says."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from inspect import isawaitable
from typing import Literal

from orchestrator.environment.conflicts import Conflict
from orchestrator.environment.errors import InvalidResolution, MergeConflict
from orchestrator.environment.files.manifest import Entry

Resolution = bytes | Entry | Literal["ours", "theirs"]
"""The content of a file; an entry (kind "gone": nothing); or what one side has, whole."""

Resolve = Callable[[Conflict], Resolution | Awaitable[Resolution]]

OnConflict = Literal["fail", "ours", "theirs"] | Resolve


async def resolve(
    conflicts: Iterable[Conflict], on_conflict: OnConflict = "fail"
) -> Mapping[str, Resolution]:
    """What takes the place of each conflict, by path.

    Args:
        on_conflict: a function is called for one conflict after another, in the order of paths.
    Raises:
        MergeConflict: there are conflicts, and `on_conflict` is "fail".
        InvalidResolution: the function returned something else than a resolution.
    """
    conflicts = tuple(conflicts)
    if not conflicts:
        return {}
    if on_conflict == "fail":
        raise MergeConflict(conflicts)
    if on_conflict in ("ours", "theirs"):
        return {conflict.path: on_conflict for conflict in conflicts}
    if not callable(on_conflict):
        raise ValueError(
            f"on_conflict is 'fail', 'ours', 'theirs' or a function, not {on_conflict!r}"
        )
    resolutions: dict[str, Resolution] = {}
    for conflict in conflicts:
        answer = on_conflict(conflict)
        resolution = await answer if isawaitable(answer) else answer
        _check(conflict, resolution)
        resolutions[conflict.path] = resolution
    return resolutions


def _check(conflict: Conflict, resolution: object) -> None:
    reason = _objection(conflict, resolution)
    if reason is not None:
        raise InvalidResolution(conflict.path, reason)


def _objection(conflict: Conflict, resolution: object) -> str | None:
    kinds = {side.kind for side in (conflict.ours, conflict.theirs) if side is not None}
    match resolution:
        case "ours" | "theirs":
            return None
        case bytes() if conflict.kind == "mode" and kinds != {"file"}:
            return f"a {kinds.pop()} has no content; give an entry with its mode"
        case Entry(kind) if conflict.kind == "mode" and kinds != {kind}:
            return f"only the permissions of this {kinds.pop()} are in question"
        case bytes() | Entry() if conflict.kind == "deleted and changed" and "folder" in kinds:
            return "a folder was changed or deleted; give 'ours' or 'theirs'"
        case Entry("folder") if conflict.kind != "mode":
            return "an entry does not say what a folder holds; give 'ours' or 'theirs'"
        case bytes() | Entry():
            return None
    return f"{resolution!r} is neither bytes, nor an Entry, nor 'ours' or 'theirs'"

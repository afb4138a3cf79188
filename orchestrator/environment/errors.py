"""Errors of workspaces and their states; each keeps its constructor's arguments."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.environment.conflicts import Conflict
from orchestrator.errors import OrchestrateError

_MAX_LISTED = 10


class BaseRefused(OrchestrateError, ValueError):
    """A folder that cannot be the base of a workspace, or that no state is applied onto."""

    def __init__(self, folder: str, reason: str) -> None:
        super().__init__(folder, reason)

    def __str__(self) -> str:
        folder, reason = self.args
        return f"{folder!r} cannot be the base of a workspace: {reason}"


class BaseChanged(OrchestrateError):
    """Somebody changed the base since the workspace began, at paths that must be as they were.

    Attributes:
        base: the base's path.
        paths: what has changed, relative to the base.
    """

    def __init__(self, base: str, paths: Sequence[str]) -> None:
        super().__init__(base, tuple(paths))

    @property
    def base(self) -> str:
        """The base's path."""
        return str(self.args[0])

    @property
    def paths(self) -> tuple[str, ...]:
        """What has changed, relative to the base."""
        return tuple(self.args[1])

    def __str__(self) -> str:
        return (
            f"{self.base!r} has changed since the workspace began: {_listed(self.paths)}; nothing"
            f" was written. Set these aside and try again, or begin a workspace with the present"
            f" files and merge"
        )


class ApplyFailed(OrchestrateError):
    """The system refused to write the base."""

    def __init__(self, base: str, path: str, reason: str, is_undone: bool = True) -> None:
        super().__init__(base, path, reason, is_undone)

    @property
    def is_undone(self) -> bool:
        """Whether the base is as it was before."""
        return bool(self.args[3])

    def __str__(self) -> str:
        base, path, reason, is_undone = self.args
        ending = (
            "the base is as it was before; remove the cause, and apply again"
            if is_undone
            else "a part is written, and could not be undone; remove the cause, then apply again to"
            " complete it, or undo it"
        )
        return f"cannot apply to {base!r}: {path!r}: {reason}; {ending}"


class ApplyBusy(OrchestrateError):
    """Another apply onto the same base is in progress."""

    def __init__(self, base: str) -> None:
        super().__init__(base)

    def __str__(self) -> str:
        return f"another apply onto {self.args[0]!r} is in progress: try again once it has ended"


class ApplyUnfinished(OrchestrateError):
    """An apply of another state was interrupted while it wrote the same base."""

    def __init__(self, base: str) -> None:
        super().__init__(base)

    def __str__(self) -> str:
        return (
            f"an apply onto {self.args[0]!r} was interrupted and has written a part of its changes:"
            f" apply the same state again to complete it, or undo it"
        )


class MergeConflict(OrchestrateError):
    """States changed the same things in different ways, and nothing says which change to take.

    Attributes:
        conflicts: all of them.
    """

    def __init__(self, conflicts: Sequence[Conflict]) -> None:
        super().__init__(tuple(conflicts))

    @property
    def conflicts(self) -> tuple[Conflict, ...]:
        """All of them, by path."""
        return tuple(self.args[0])

    def __str__(self) -> str:
        listed = _listed(self.conflicts)
        return (
            f"the states conflict at {listed}: nothing was merged. Say on_conflict='ours' or"
            f" 'theirs', or give a function that resolves a conflict"
        )


class InvalidResolution(OrchestrateError, ValueError):
    """What `on_conflict` returned cannot take the place of the conflict."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(path, reason)

    def __str__(self) -> str:
        path, reason = self.args
        return f"on_conflict cannot resolve {path!r} so: {reason}"


def _listed(things: Sequence[object]) -> str:
    shown = [each if isinstance(each, Conflict) else repr(each) for each in things[:_MAX_LISTED]]
    more = len(things) - len(shown)
    return ", ".join(map(str, shown)) + (f" and {more} more" if more else "")

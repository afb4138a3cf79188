"""Errors of workspaces; each keeps its constructor's arguments and says what to do."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from orchestrator.environment.conflicts import Conflict
from orchestrator.errors import OrchestrateError


class SandboxFailed(OrchestrateError):
    """A sandbox refused an operation, or has died."""

    def __init__(self, reason: str, number: int | None = None) -> None:
        super().__init__(reason, number)

    @property
    def has_died(self) -> bool:
        """Whether it was killed, which says nothing of what the system allows."""
        return bool(self.args[1] == errno.ESRCH)

    def __str__(self) -> str:
        return str(self.args[0])


class StateLost(OrchestrateError):
    """A state is not stored any more, or a part of it has other bytes than were stored."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(state, reason)

    def __str__(self) -> str:
        state, reason = self.args
        return f"state {state[:12]} cannot be shown: {reason}"


class StateDiscarded(StateLost):
    """A state was given up: its files are no longer kept, and it is not computed again."""

    def __init__(
        self, state: str, reason: str = "it was given up by `orchestrate discard`"
    ) -> None:
        super().__init__(state, reason)


class ShellBusy(OrchestrateError):
    """Programs run in the background, which a fork could not have."""

    def __init__(self, processes: Sequence[tuple[int, str]]) -> None:
        super().__init__(tuple(processes))

    def __str__(self) -> str:
        listed = ", ".join(f"process {process} ({command})" for process, command in self.args[0])
        return (
            f"a fork cannot have what runs in the background: {listed};"
            " end it before, or start it as a service, which is started again in forks"
        )


class ServiceFailed(OrchestrateError):
    """A service ended at once, or was not ready in time."""

    def __init__(self, name: str, reason: str, output: str = "") -> None:
        super().__init__(name, reason, output)

    def __str__(self) -> str:
        name, reason, output = self.args
        last = output.strip()[-500:]
        return f"service {name} {reason}" + (f"; it wrote: {last}" if last else "")


class CommandFailed(OrchestrateError):
    """A command has ended with an exit code other than 0."""

    def __init__(self, command: str, exit_code: int, stderr: str) -> None:
        super().__init__(command, exit_code, stderr)

    def __str__(self) -> str:
        command, exit_code, stderr = self.args
        last = stderr.strip()[-500:]
        return f"{command!r} ended with exit code {exit_code}" + (f": {last}" if last else "")


class OutsideWorkspace(OrchestrateError, ValueError):
    """A path leads out of the workspace."""

    def __init__(self, path: str, folder: str) -> None:
        super().__init__(path, folder)

    def __str__(self) -> str:
        return "{!r} leads out of the workspace {}: give a path within it".format(*self.args)


class WorkspaceFull(OrchestrateError):
    """The changes of a workspace are larger than its limit."""

    def __init__(self, size_bytes: int, limit_bytes: int) -> None:
        super().__init__(size_bytes, limit_bytes)

    def __str__(self) -> str:
        size, limit = self.args
        return (
            f"the workspace's changes take {size} bytes, and its limit is {limit}:"
            " remove files, or set a higher limit"
        )


class WorkspaceBusy(OrchestrateError):
    """Two parts of a flow use one workspace at the same time."""

    def __init__(self, name: str, at_work: str) -> None:
        super().__init__(name, at_work)

    def __str__(self) -> str:
        name, at_work = self.args
        return (
            f"workspace {name} is in use by {at_work}: branches that run side by side need a fork"
            " each (fork), or one waits for the other"
        )


class WorkspaceClosed(OrchestrateError, RuntimeError):
    """A workspace is used after its end, or after its origin has ended it."""

    def __init__(self, base: str) -> None:
        super().__init__(base)

    def __str__(self) -> str:
        return (
            f"this workspace of {self.args[0]} has ended: its block is left, or another fork was"
            " adopted; open one with workspace(), or fork again"
        )


class NotRevertible(OrchestrateError):
    """A rewind would leave effects on the outside world that nothing takes back."""

    def __init__(self, workspace: str, effects: Sequence[tuple[str, str]]) -> None:
        super().__init__(workspace, tuple(effects))

    def __str__(self) -> str:
        workspace, effects = self.args
        listed = ", ".join(f"{name} (step {path})" for name, path in effects)
        way = "give their tools compensate=, or allow= what may stay"
        if all(name == "ws.apply" for name, _ in effects):
            way = "the folder is another since; to undo an apply, apply the former= of its result"
        return (
            f"workspace {workspace} cannot go back past effects on the outside world: {listed};"
            f" {way}"
        )


class NoWorkspace(OrchestrateError, RuntimeError):
    """A tool that works in a workspace was called outside of one."""

    def __init__(self, tool: str) -> None:
        super().__init__(tool)

    def __str__(self) -> str:
        return (
            f"{self.args[0]} works in a workspace, and none is open here: call it within"
            " `async with workspace(...) as ws`, or give it one"
        )


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

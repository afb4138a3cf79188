"""Errors of workspaces; each keeps its constructor's arguments and says what to do."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.errors import OrchestrateError


class SandboxFailed(OrchestrateError):
    """A sandbox refused an operation, or has died."""

    def __init__(self, reason: str, number: int | None = None) -> None:
        super().__init__(reason, number)

    def __str__(self) -> str:
        return str(self.args[0])


class StateLost(OrchestrateError):
    """A state is not stored any more, or a part of it has other bytes than were stored."""

    def __init__(self, state: str, reason: str) -> None:
        super().__init__(state, reason)

    def __str__(self) -> str:
        state, reason = self.args
        return f"state {state[:12]} cannot be shown: {reason}"


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


class OutsideWorkspace(OrchestrateError, ValueError):
    """A path leads out of the workspace."""

    def __init__(self, path: str, folder: str) -> None:
        super().__init__(path, folder)

    def __str__(self) -> str:
        return "{!r} is no path within the workspace {}: give one relative to it".format(*self.args)


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

"""What a workspace needs of the thing that holds its files and runs its programs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from typing import Protocol, cast

from orchestrator.environment.files.folder_scan import Keep
from orchestrator.environment.files.manifest import Files, Manifest
from orchestrator.environment.sandbox.messages import Limits
from orchestrator.environment.trees.sandbox_client import Sandbox, Writer, Zygote


@dataclass(frozen=True, slots=True)
class WorkspaceLimits:
    """Limits on a workspace and each of its programs; None: no limit.

    Attributes:
        cpu_s: processor time of each process.
        memory_bytes: address space of each process.
        processes: how many run at the same time.
        file_bytes: size of each file that is written.
        disk_bytes: of all changes together; looked at when a state is captured.
    Raises:
        TypeError, ValueError: a limit is no whole number, or less than 1.
    """

    cpu_s: int | None = None
    memory_bytes: int | None = None
    processes: int | None = None
    file_bytes: int | None = None
    disk_bytes: int | None = None

    def __post_init__(self) -> None:
        for name in (each.name for each in fields(self)):
            limit = getattr(self, name)
            if limit is not None and (not isinstance(limit, int) or isinstance(limit, bool)):
                raise TypeError(f"{name} is a whole number or None, not {limit!r}")
            if limit is not None and limit < 1:
                raise ValueError(f"{name} is at least 1, or None for no limit; not {limit}")

    def of_program(self) -> Limits:
        """Those that a program is started with."""
        named = {
            "cpu_s": self.cpu_s,
            "memory_bytes": self.memory_bytes,
            "processes": self.processes,
            "file_bytes": self.file_bytes,
        }
        return cast("Limits", {name: value for name, value in named.items() if value is not None})


@dataclass(frozen=True, slots=True)
class Confinement:
    """What programs of a workspace may reach and use.

    Attributes:
        network: whether they have the machine's network.
        hide: files, and folders whose files, they cannot read.
    """

    network: bool = False
    hide: tuple[str, ...] = ()
    limits: WorkspaceLimits = WorkspaceLimits()


@dataclass(frozen=True, slots=True)
class FilesSeen:
    """The files of a workspace at one moment.

    Attributes:
        manifest: the changes against the base.
        left_out: sockets and devices, which cannot be kept.
        mapped: processes that held a file in memory as writable: its content was read, but such a
            process may have been in the middle of a change.
    """

    manifest: Manifest
    left_out: Sequence[str] = ()
    mapped: Sequence[Writer] = ()


class Tree(Protocol):
    """The files and processes of one workspace."""

    @property
    def place(self) -> str:
        """The folder in which its programs see the workspace."""
        ...

    @property
    def sandbox(self) -> Sandbox:
        """Starts, freezes and ends its programs."""
        ...

    @property
    def ends_programs(self) -> bool:
        """Whether `mount` ends the programs that run; else they must have ended before."""
        ...

    async def open(self, zygote: Zygote, files: Files) -> None:
        """Show files, in a new sandbox.

        Raises:
            SandboxFailed: the system refuses it.
            FileNotFoundError: a content is not stored.
        """
        ...

    async def mount(self, files: Files, *, idle: Collection[int] = ()) -> None:
        """Show other files at the same place; programs that ran before do not see them.

        Args:
            idle: programs that go on and wait for us, such as a shell without a command.
        Raises:
            FileNotFoundError: a content is not stored; nothing was changed.
        """
        ...

    async def read(self, keep: Keep, *, idle: Collection[int] = ()) -> FilesSeen:
        """Read the files that it shows now, while its programs are stopped.

        Args:
            keep: stores the contents of files that may have changed since the last time.
            idle: programs that wait for us, such as a shell without a command.
        Raises:
            SandboxFailed: a program does not stop.
            OSError: a file cannot be read.
        """
        ...

    @property
    def num_changed(self) -> int:
        """How many entries `read` has to list each time; 0 if that cannot be made less."""
        ...

    async def close(self) -> None:
        """End all programs and remove what it wrote; idempotent."""
        ...


def paths_below(place: str, writers: Sequence[Writer]) -> set[str]:
    """The files that processes have in memory, relative to the workspace."""
    return {writer.path.removeprefix(f"{place}/") for writer in writers}

"""What a workspace needs of the thing that holds its files and runs its programs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from orchestrator.environment.files.folder_scan import Keep
from orchestrator.environment.files.manifest import Manifest
from orchestrator.environment.trees.sandbox_client import Sandbox, Writer


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
        """Starts, freezes and ends its programs; is another one after `mount`."""
        ...

    async def open(self, manifest: Manifest) -> None:
        """Show these files, in a new sandbox; raises SandboxFailed, StateLost."""
        ...

    async def mount(self, manifest: Manifest) -> None:
        """Show other files at the same place; raises StateLost.

        All its programs must have ended.
        """
        ...

    async def read(self, keep: Keep) -> FilesSeen:
        """Read the files that it shows now, while its programs are stopped.

        Args:
            keep: stores the contents of files that may have changed since the last time.
        """
        ...

    async def close(self) -> None:
        """End all programs and remove what it wrote; idempotent."""
        ...

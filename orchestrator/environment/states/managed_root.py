"""The folder under which all that workspaces write lies."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from orchestrator.environment.files import collection_lock
from orchestrator.environment.files.blob_store import BlobStore


@dataclass(frozen=True)
class ManagedRoot:
    """Contents of files, states, layers and open workspaces. All of it is on one file system."""

    path: Path

    @cached_property
    def blobs(self) -> BlobStore:
        """Contents of files, manifests and shell scripts."""
        return BlobStore(self.path)

    @property
    def states(self) -> Path:
        """A file for each state."""
        return self.path / "states"

    @property
    def layers(self) -> Path:
        """Layers of overlays, built from states; see LayerStacks."""
        return self.path / "layers"

    @property
    def live(self) -> Path:
        """A folder for each open workspace."""
        return self.path / "live"

    @property
    def trash(self) -> Path:
        """What the garbage collection is removing."""
        return self.path / "trash"

    def collection_stopped(self) -> AbstractContextManager[None]:
        """Keep the garbage collection of every process from removing anything in a block."""
        return collection_lock.collection_stopped(self.path)

    def collecting(self) -> AbstractContextManager[None]:
        """Remove in a block; waits until no process is in `collection_stopped`."""
        return collection_lock.collecting(self.path)

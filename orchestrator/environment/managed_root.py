"""The folder under which all that workspaces write lies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

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

    @contextmanager
    def collection_stopped(self) -> Iterator[None]:
        """Keep the garbage collection of every process from removing anything in this block."""
        with self._locked(fcntl.LOCK_SH):
            yield

    @contextmanager
    def collecting(self) -> Iterator[None]:
        """Remove in this block; waits until no process is in `collection_stopped`."""
        with self._locked(fcntl.LOCK_EX):
            yield

    @contextmanager
    def _locked(self, kind: int) -> Iterator[None]:
        descriptor = os.open(self.path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, kind)
            yield
        finally:
            os.close(descriptor)

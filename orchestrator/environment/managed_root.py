"""The folder under which all that workspaces write lies."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from blake3 import blake3

from orchestrator.environment.files.blob_store import BlobStore
from store.database.private_files import data_folder
from store.database.urls import file_of, is_sqlite, normalised, without_password


def environments_folder(store_url: str, given: str | None = None) -> Path:
    """The managed root of a store: `x.environments` for a SQLite file x.db, else in users' data.

    Args:
        given: by the settings, instead.
    Raises:
        StoreUnreachable: the URL is not valid.
    """
    if given is not None:
        return Path(given).expanduser().absolute()
    address = normalised(store_url)
    if is_sqlite(address):
        return file_of(address).with_suffix(".environments")
    name = blake3(without_password(address).encode()).hexdigest()[:16]
    return data_folder() / "environments" / name


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

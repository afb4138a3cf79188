"""How those that store and the garbage collection keep out of each other's way.

What is stored counts as new from when it was written, linked or last relied on: by its ctime, which
nothing else sets. The garbage collection leaves what is newer than an hour, so a capture needs no
lock while it works, only where it relies on something old.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

NEW_S = 3600.0
"""What is newer may be a part of a state that is being captured: it is never removed."""

_RENEWED_S = 60.0
"""What is newer does not need to be renewed."""


@contextmanager
def collection_stopped(root: Path) -> Iterator[None]:
    """Keep the garbage collection of every process from removing anything in this block."""
    with _locked(root / "lock", fcntl.LOCK_SH):
        yield


@contextmanager
def collecting(root: Path) -> Iterator[None]:
    """Remove in this block; waits until no process is in `collection_stopped`."""
    with _locked(root / "lock", fcntl.LOCK_EX):
        yield


def renewed(root: Path, stored: Path) -> os.stat_result | None:
    """Make a stored file count as new; None: it is not there."""
    try:
        status = stored.stat()
        if time.time() - status.st_ctime > _RENEWED_S:
            with collection_stopped(root):
                os.utime(stored, ns=(status.st_atime_ns, status.st_mtime_ns))
    except FileNotFoundError:
        return None
    return status


def exclusively(lock: Path) -> AbstractContextManager[None]:
    """One process and thread at a time in the block, of those that give the same file."""
    return _locked(lock, fcntl.LOCK_EX)


@contextmanager
def _locked(lock: Path, kind: int) -> Iterator[None]:
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, kind)
        yield
    finally:
        os.close(descriptor)

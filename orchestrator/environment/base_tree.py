"""The base folder of a workspace: read where it is, hashed where a state must be compared."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from orchestrator.environment.blob_store import digest_of_file
from orchestrator.environment.folder_scan import Signature
from orchestrator.environment.manifest import Entry


class BaseFolder:
    """A base, with the digests of those of its files that were needed so far."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        self._digests: dict[str, tuple[Signature, str]] = {}

    def entry(self, path: str) -> Entry | None:
        """What the base has at a path; None: nothing, or nothing that a state can hold."""
        place = os.path.join(self._folder, path)
        try:
            status = os.lstat(place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        mode, mtime_ns = stat.S_IMODE(status.st_mode), status.st_mtime_ns
        if stat.S_ISDIR(status.st_mode):
            return Entry("folder", mode, mtime_ns=mtime_ns)
        if stat.S_ISLNK(status.st_mode):
            return Entry("link", mode, os.readlink(place), mtime_ns=mtime_ns)
        if stat.S_ISREG(status.st_mode):
            return Entry("file", mode, self._digest(path, status), status.st_size, mtime_ns)
        return Entry("fifo", mode, mtime_ns=mtime_ns)

    def names(self, path: str) -> Iterable[str]:
        """The names in a folder of the base; none if it is no folder."""
        try:
            return os.listdir(os.path.join(self._folder, path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def _digest(self, path: str, status: os.stat_result) -> str:
        signature = Signature(
            status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns
        )
        known = self._digests.get(path)
        if known is not None and known[0] == signature:
            return known[1]
        descriptor = os.open(os.path.join(self._folder, path), os.O_RDONLY | os.O_NOFOLLOW)
        try:
            digest = digest_of_file(descriptor)
        finally:
            os.close(descriptor)
        self._digests[path] = signature, digest
        return digest

"""The base folder of a workspace: read where it is, hashed where a state must be compared."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable
from pathlib import Path

from orchestrator.environment.files.blob_store import digest_of_file
from orchestrator.environment.files.folder_scan import Signature
from orchestrator.environment.files.manifest import Entry, Kind, parents_of

_KINDS: dict[int, Kind] = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "folder",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
}


def kind_of(status: os.stat_result | None) -> Kind | None:
    """What a state calls this; None: nothing that it can hold."""
    return None if status is None else _KINDS.get(stat.S_IFMT(status.st_mode))


class BaseFolder:
    """A base, with the digests of those of its files that were needed so far.

    Attributes:
        folder: where it is; absolute.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._folder = str(folder)
        self._digests: dict[str, tuple[Signature, str]] = {}

    def kind(self, path: str) -> Kind | None:
        """What the base has at a path; None: nothing that a state can hold."""
        return kind_of(self._status(path))

    def is_same(self, path: str, entry: Entry) -> bool:
        """Whether the base has this at a path, times aside; reads a file only if it may be.

        What this user may not read counts as changed.
        """
        try:
            return self._is_same(path, entry)
        except PermissionError:
            return False

    def open(self, path: str) -> int:
        """A descriptor of a file, for reading; raises OSError."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self._place(path), flags)

    def entry(self, path: str) -> Entry | None:
        """What the base has at a path; reads a file unless its digest is known.

        Raises:
            OSError: it cannot be read.
        """
        status = self._status(path)
        kind = kind_of(status)
        if status is None or kind is None:
            return None
        size, content = 0, ""
        if kind == "file":
            size, content = status.st_size, self._digest(path, status)
        elif kind == "link":
            content = os.readlink(self._place(path))
        return Entry(kind, stat.S_IMODE(status.st_mode), content, size, status.st_mtime_ns)

    def read(self, path: str) -> bytes:
        """The content of a file; raises OSError."""
        descriptor = os.open(self._place(path), os.O_RDONLY | os.O_NOFOLLOW)
        with open(descriptor, "rb") as file:
            return file.read()

    def names(self, path: str) -> Iterable[str]:
        """The names in a folder of the base; none if it is no folder."""
        return os.listdir(self._place(path)) if self.kind(path) == "folder" else []

    def _place(self, path: str) -> str:
        return os.path.join(self._folder, path)

    def _is_same(self, path: str, entry: Entry) -> bool:
        status = self._status(path)
        if status is None or kind_of(status) != entry.kind:
            return False
        if entry.kind == "link":
            return os.readlink(self._place(path)) == entry.content
        if stat.S_IMODE(status.st_mode) != entry.mode:
            return False
        if entry.kind != "file":
            return True
        return status.st_size == entry.size and self._digest(path, status) == entry.content

    def _status(self, path: str) -> os.stat_result | None:
        try:
            for parent in parents_of(path):  # a link to a folder is none
                if not stat.S_ISDIR(os.lstat(self._place(parent)).st_mode):
                    return None
            return os.lstat(self._place(path))
        except FileNotFoundError:
            return None

    def _digest(self, path: str, status: os.stat_result) -> str:
        signature = Signature.of(status)
        known = self._digests.get(path)
        if known is not None and known[0] == signature:
            return known[1]
        descriptor = self.open(path)
        try:
            digest = digest_of_file(descriptor)
        finally:
            os.close(descriptor)
        self._digests[path] = signature, digest
        return digest

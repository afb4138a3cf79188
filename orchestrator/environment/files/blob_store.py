"""The bytes of files by their BLAKE3 digest: written once, never changed."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

from orchestrator.environment.files.collection_lock import renewed
from orchestrator.environment.files.content_copying import copy_content
from orchestrator.environment.files.manifest import Entry

_READABLE = 0o444
_SMALL_BYTES = 1 << 20
"""Files below are read at once: hashed first, and written only if they are new."""


class BlobDamaged(Exception):
    """A stored file has other bytes than its name says."""

    def __init__(self, digest: str, path: str) -> None:
        super().__init__(digest, path)

    def __str__(self) -> str:
        digest, path = self.args
        return f"{path} does not have the content {digest}: the checkpoints with it are damaged"


class BlobStore:
    """Files in a folder, each named by its digest.

    A file is complete under its name, or is not there: it is written beside and renamed. Several
    processes may write the same one.

    A stored file has the mode and the time of the file that it came from, as far as it stays
    readable by that: so a layer can often hold the stored file itself, by a hard link.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._blobs = folder / "blobs"
        self._new = folder / "new"
        for each in (self._blobs, self._new):
            each.mkdir(parents=True, exist_ok=True)

    def path_of(self, digest: str) -> Path:
        """Where the bytes with this digest lie, if they are stored."""
        return self._blobs / digest[:2] / digest[2:]

    def has(self, digest: str) -> bool:
        """Whether the bytes with this digest are stored."""
        return self.path_of(digest).exists()

    def add(self, data: bytes, like: os.stat_result | None = None) -> str:
        """Store bytes; returns their digest.

        Args:
            like: the status of the file that they are from.
        """
        digest = str(blake3(data).hexdigest())
        if not self._has_whole(digest, len(data)):
            with self._writing(like) as file:
                file.write(data)
            self._rename(Path(file.name), digest)
        return digest

    def add_file(self, descriptor: int, size: int) -> str:
        """Store the content of an open file; returns its digest. Holes stay holes."""
        like = os.fstat(descriptor)
        if size < _SMALL_BYTES:
            return self.add(_read_all(descriptor), like)
        digest = digest_of_file(descriptor)
        if self._has_whole(digest, like.st_size):
            return digest
        hasher = blake3()
        with self._writing(like) as file:
            copy_content(descriptor, file.fileno())
        name = Path(file.name)
        hasher.update_mmap(name)
        written = str(hasher.hexdigest())  # the file may have changed since it was hashed
        self._rename(name, written)
        return written

    def link(self, entry: Entry, place: str) -> bool:
        """Put the stored file itself at a place that must stay unchanged.

        Returns:
            Whether that was possible: its mode and time are those of the entry.
        """
        path = self.path_of(entry.content)
        status = path.stat()
        if (stat.S_IMODE(status.st_mode), status.st_mtime_ns) != (entry.mode, entry.mtime_ns):
            return False
        try:
            os.link(path, place)
        except OSError as error:
            if error.errno in (errno.EMLINK, errno.EXDEV, errno.EPERM):
                return False
            raise
        return True

    def copy_to(self, digest: str, descriptor: int) -> None:
        """Write the bytes with this digest into an empty file; raises FileNotFoundError."""
        source = os.open(self.path_of(digest), os.O_RDONLY)
        try:
            copy_content(source, descriptor)
        finally:
            os.close(source)

    def read(self, digest: str) -> bytes:
        """The bytes with this digest.

        Raises:
            FileNotFoundError: they are not stored.
            BlobDamaged: other bytes are stored under this digest.
        """
        path = self.path_of(digest)
        data = path.read_bytes()
        if blake3(data).hexdigest() != digest:
            raise BlobDamaged(digest, str(path))
        return data

    def verify(self, digest: str) -> None:
        """Raise FileNotFoundError or BlobDamaged if the bytes are not there as stored."""
        path = self.path_of(digest)
        descriptor = os.open(path, os.O_RDONLY)
        try:
            if digest_of_file(descriptor) != digest:
                raise BlobDamaged(digest, str(path))
        finally:
            os.close(descriptor)

    def all(self) -> Iterator[str]:
        """The digests of all stored files."""
        for folder in self._blobs.iterdir():
            for file in folder.iterdir():
                yield folder.name + file.name

    def remove(self, digest: str) -> int:
        """Remove the bytes with this digest; returns how many bytes of disk that frees."""
        path = self.path_of(digest)
        with suppress(FileNotFoundError):
            status = path.stat()
            path.unlink()
            return status.st_blocks * 512 if status.st_nlink == 1 else 0  # a layer has it too
        return 0

    def _has_whole(self, digest: str, size: int) -> bool:
        """Whether it is stored, and stays so: from now on it counts as new.

        After a loss of power a file may have its name and no content.
        """
        status = renewed(self._folder, self.path_of(digest))
        return status is not None and status.st_size == size

    @contextmanager
    def _writing(self, like: os.stat_result | None) -> Iterator[BinaryIO]:
        """A new file beside the stored ones."""
        name = self._new / os.urandom(12).hex()
        try:
            with name.open("xb") as file:
                yield file
                file.flush()
                os.fchmod(file.fileno(), _READABLE if like is None else _stored_mode(like.st_mode))
                if like is not None:
                    os.utime(file.fileno(), ns=(like.st_mtime_ns, like.st_mtime_ns))
        except BaseException:
            name.unlink(missing_ok=True)
            raise

    def _rename(self, name: Path, digest: str) -> None:
        target = self.path_of(digest)
        try:
            name.rename(target)
        except FileNotFoundError:
            target.parent.mkdir(exist_ok=True)
            name.rename(target)


def _stored_mode(mode: int) -> int:
    """The mode of a stored file: the original's, unless that is special or not readable by us."""
    mode = stat.S_IMODE(mode)
    return mode if mode & 0o400 and mode <= 0o777 else _READABLE


def digest_of_file(descriptor: int) -> str:
    """The digest of an open file's content."""
    hasher = blake3()
    size = os.fstat(descriptor).st_size
    if size < _SMALL_BYTES:
        hasher.update(_read_all(descriptor))
    else:
        hasher.update_mmap(f"/proc/self/fd/{descriptor}")
    return str(hasher.hexdigest())


def _read_all(descriptor: int) -> bytes:
    parts, at = [], 0
    while part := os.pread(descriptor, _SMALL_BYTES, at):
        parts.append(part)
        at += len(part)
    return b"".join(parts)

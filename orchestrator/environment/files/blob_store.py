"""The bytes of files by their BLAKE3 digest: written once, never changed."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3

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

    Args:
        durable: sync each file, so that it survives a loss of power too.
    """

    def __init__(self, folder: Path, *, durable: bool = False) -> None:
        self._blobs = folder / "blobs"
        self._new = folder / "new"
        self._durable = durable
        self._numbers = itertools.count()
        for each in (self._blobs, self._new):
            each.mkdir(parents=True, exist_ok=True)

    def path_of(self, digest: str) -> Path:
        """Where the bytes with this digest lie, if they are stored."""
        return self._blobs / digest[:2] / digest[2:]

    def has(self, digest: str) -> bool:
        """Whether the bytes with this digest are stored."""
        return self.path_of(digest).exists()

    def add(self, data: bytes) -> str:
        """Store bytes; returns their digest."""
        digest = str(blake3(data).hexdigest())
        if not self.has(digest):
            with self._writing(digest) as file:
                file.write(data)
        return digest

    def add_file(self, descriptor: int, size: int) -> str:
        """Store the content of an open file; returns its digest. Holes stay holes."""
        if size < _SMALL_BYTES:
            return self.add(_read_all(descriptor))
        digest = digest_of_file(descriptor)
        if self.has(digest):
            return digest
        hasher = blake3()
        with self._writing(None) as file:
            for start, data in _pieces(descriptor):
                if data is None:
                    file.truncate(start)
                    file.seek(start)
                else:
                    file.write(data)
            name = Path(file.name)
        hasher.update_mmap(name)
        written = str(hasher.hexdigest())  # the file may have changed since it was hashed
        self._rename(name, written)
        return written

    def copy_to(self, digest: str, descriptor: int) -> None:
        """Write the bytes with this digest into an open file; raises FileNotFoundError."""
        source = os.open(self.path_of(digest), os.O_RDONLY)
        try:
            for start, data in _pieces(source):
                if data is None:
                    os.ftruncate(descriptor, start)
                    os.lseek(descriptor, start, os.SEEK_SET)
                else:
                    _write_all(descriptor, data)
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
            freed = path.stat().st_blocks * 512
            path.unlink()
            return freed
        return 0

    @contextmanager
    def _writing(self, digest: str | None) -> Iterator[BinaryIO]:
        """A new file; complete under its digest once the block ends, if that is known before."""
        name = self._new / f"{os.getpid()}.{next(self._numbers)}"
        try:
            with name.open("xb") as file:
                yield file
                file.flush()
                if self._durable:
                    os.fsync(file.fileno())
            if digest is not None:
                self._rename(name, digest)
        except BaseException:
            name.unlink(missing_ok=True)
            raise

    def _rename(self, name: Path, digest: str) -> None:
        target = self.path_of(digest)
        name.chmod(0o444)
        try:
            name.rename(target)
        except FileNotFoundError:
            target.parent.mkdir(exist_ok=True)
            name.rename(target)


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


def _pieces(descriptor: int) -> Iterator[tuple[int, bytes | None]]:
    """The data of a file in order; for a hole None, with the place where it ends."""
    size, at = os.fstat(descriptor).st_size, 0
    while at < size:
        begin = _seek(descriptor, at, os.SEEK_DATA, size)
        if begin > at:
            yield begin, None
        end = at = min(_seek(descriptor, begin, os.SEEK_HOLE, size), size) if begin < size else size
        while begin < end and (data := os.pread(descriptor, min(end - begin, _SMALL_BYTES), begin)):
            yield begin, data
            begin += len(data)


def _seek(descriptor: int, at: int, whence: int, size: int) -> int:
    try:
        return os.lseek(descriptor, at, whence)
    except OSError:  # ENXIO: no data after this place
        return size


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]

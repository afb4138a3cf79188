"""Reads and writes single paths of a base, never through a symbolic link."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from orchestrator.environment.errors import BaseChanged
from orchestrator.environment.files.base_folder import kind_of
from orchestrator.environment.files.blob_store import BlobDamaged, BlobStore, digest_of_file
from orchestrator.environment.files.manifest import Entry, Kind

_FOLDER_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class BaseWriter:
    """One base. Each folder on the way to a path is opened in the one before it.

    What is written is owned as what it replaces, or as the folder that it lies in, as far as this
    user may give it away. A file that replaces another is a new one: other names of the old one
    (hard links) keep the old content.

    Args:
        durable: sync each file.
    """

    def __init__(self, base: str, blobs: BlobStore, *, durable: bool) -> None:
        self._base, self._blobs, self._durable = base, blobs, durable
        self._descriptor = os.open(base, _FOLDER_FLAGS)

    def close(self) -> None:
        """Close the base."""
        os.close(self._descriptor)

    def entry(self, path: str) -> Entry | None:
        """What there is at a path, without a file's digest; None: nothing that a state can hold."""
        status = self._status(path)
        kind = kind_of(status)
        if status is None or kind is None:
            return None
        target = ""
        if kind == "link":
            with self._parent(path) as (parent, name):
                target = os.readlink(name, dir_fd=parent)
        size = status.st_size if kind == "file" else 0
        return Entry(kind, stat.S_IMODE(status.st_mode), target, size, status.st_mtime_ns)

    def digest(self, path: str) -> str:
        """The digest of a file's content."""
        with self._readable(path) as descriptor:
            return digest_of_file(descriptor)

    def names(self, path: str) -> list[str]:
        """The names in a folder."""
        with self._parent(path) as (parent, name):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
            descriptor = os.open(name, flags, dir_fd=parent)
            try:
                return os.listdir(descriptor)
            finally:
                os.close(descriptor)

    def store(self, path: str, expected: Entry) -> Entry:
        """Copy a file to the store; returns its entry with the digest.

        Raises:
            BaseChanged: it is not as expected, or changes meanwhile.
        """
        with self._readable(path) as descriptor:
            digest = self._blobs.add_file(descriptor, expected.size)
            status = os.fstat(descriptor)
        if (status.st_size, status.st_mtime_ns) != (expected.size, expected.mtime_ns):
            raise BaseChanged(self._base, (path,))
        return expected._replace(content=digest)

    def stage(self, temporary: str, path: str, entry: Entry) -> Entry:
        """Write a file, link or fifo under a temporary path.

        Args:
            path: where it will be.
        Returns:
            The entry with the time that the file system has kept.
        Raises:
            BlobDamaged: the stored file has another content than its digest says.
        """
        owner = self._owner(path)
        with self._parent(temporary) as (parent, name):
            match entry.kind:
                case "file":
                    self._write(parent, name, entry, owner)
                case "link":
                    os.symlink(entry.content, name, dir_fd=parent)
                    self._give(parent, name, owner)
                case _:
                    os.mkfifo(name, 0o600, dir_fd=parent)
                    self._give(parent, name, owner)
                    self._set_mode(parent, name, entry.mode)
            _set_time(parent, name, entry.mtime_ns)
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        return entry._replace(mtime_ns=status.st_mtime_ns)

    def place(self, temporary: str, path: str) -> None:
        """Move what was staged to its place, over what is there."""
        with self._parent(temporary) as (source, name), self._parent(path) as (target, new_name):
            os.rename(name, new_name, src_dir_fd=source, dst_dir_fd=target)

    def make_folder(self, path: str) -> None:
        """Make a folder that only we can enter yet; it may be there already."""
        owner = self._owner(path)
        with self._parent(path) as (parent, name), suppress(FileExistsError):
            os.mkdir(name, 0o700, dir_fd=parent)
            self._give(parent, name, owner)

    def remove(self, path: str, kind: Kind) -> None:
        """Remove a file, or an empty folder; it may be gone already."""
        with self._parent(path) as (parent, name), suppress(FileNotFoundError):
            if kind == "folder":
                os.rmdir(name, dir_fd=parent)
            else:
                os.unlink(name, dir_fd=parent)

    def set_mode(self, path: str, mode: int) -> None:
        """Set the permissions of anything but a link."""
        with self._parent(path) as (parent, name):
            self._set_mode(parent, name, mode)

    def set_time(self, path: str, mtime_ns: int) -> None:
        """Set the time of the last change."""
        with self._parent(path) as (parent, name):
            _set_time(parent, name, mtime_ns)

    @contextmanager
    def _parent(self, path: str) -> Iterator[tuple[int, str]]:
        """The folder of a path, open, and the name in it."""
        *folders, name = path.split("/")
        descriptor = os.dup(self._descriptor)
        try:
            for each in folders:
                inner = os.open(each, _FOLDER_FLAGS, dir_fd=descriptor)
                os.close(descriptor)
                descriptor = inner
            yield descriptor, name or "."
        finally:
            os.close(descriptor)

    def _status(self, path: str) -> os.stat_result | None:
        try:
            with self._parent(path) as (parent, name):
                return os.stat(name, dir_fd=parent, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @contextmanager
    def _readable(self, path: str) -> Iterator[int]:
        """A file, open; one that even its owner may not read is made readable meanwhile."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with self._parent(path) as (parent, name):
            try:
                descriptor = os.open(name, flags, dir_fd=parent)
            except PermissionError:
                mode = stat.S_IMODE(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
                self._set_mode(parent, name, mode | stat.S_IRUSR)
                try:
                    descriptor = os.open(name, flags, dir_fd=parent)
                finally:
                    self._set_mode(parent, name, mode)
        try:
            yield descriptor
        finally:
            os.close(descriptor)

    def _write(self, parent: int, name: str, entry: Entry, owner: tuple[int, int]) -> None:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(name, flags, 0o600, dir_fd=parent)
        try:
            self._blobs.copy_to(entry.content, descriptor)
            if digest_of_file(descriptor) != entry.content:
                raise BlobDamaged(entry.content, str(self._blobs.path_of(entry.content)))
            self._give(parent, name, owner)
            os.fchmod(descriptor, entry.mode)
            if self._durable:
                os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def _owner(self, path: str) -> tuple[int, int]:
        """User and group of what is at a path, else of the nearest folder above it."""
        status = self._status(path)
        while status is None:
            path = path.rpartition("/")[0]
            status = self._status(path)
        return status.st_uid, status.st_gid

    def _give(self, parent: int, name: str, owner: tuple[int, int]) -> None:
        status = os.stat(name, dir_fd=parent, follow_symlinks=False)
        user, group = owner
        if os.geteuid() == 0:
            if (status.st_uid, status.st_gid) != owner:
                os.chown(name, user, group, dir_fd=parent, follow_symlinks=False)
        elif status.st_gid != group and group in os.getgroups():
            os.chown(name, -1, group, dir_fd=parent, follow_symlinks=False)

    @staticmethod
    def _set_mode(parent: int, name: str, mode: int) -> None:
        descriptor = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
        try:  # Linux has no call that sets the mode of a name and follows no link
            os.chmod(f"/proc/self/fd/{descriptor}", mode)
        finally:
            os.close(descriptor)


def _set_time(parent: int, name: str, mtime_ns: int) -> None:
    os.utime(name, ns=(mtime_ns, mtime_ns), dir_fd=parent, follow_symlinks=False)

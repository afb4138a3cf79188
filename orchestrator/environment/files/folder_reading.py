"""Lists folders and opens files, also those whose modes keep their owner out."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, TypeVar

from orchestrator.environment.files.manifest import parents_of

_Read = TypeVar("_Read")

_OPAQUE = "user.overlay.opaque"


class Listed(NamedTuple):
    """One name in a folder.

    Attributes:
        mode: kind and permission bits, as in os.stat_result.
        device: of a device file, its number.
        target: of a link; else "".
        is_opaque: a folder below which an overlay shows nothing of lower layers.
    """

    name: str
    mode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    num_links: int
    device: int
    target: str
    is_opaque: bool


class FolderReader:
    """Reads one folder, with this process's permissions; paths are relative to it.

    Args:
        opens_up: it is ours alone: what its owner may not read is given other modes while it is
            read, which also changes the time of its last change. Else, as for a base, that is
            refused, and marks of an overlay are not looked for.
    """

    def __init__(self, folder: str, *, opens_up: bool = True) -> None:
        self._folder = folder
        self._opens_up = opens_up

    def list(self, path: str) -> Sequence[Listed]:
        """What a folder holds, sorted by name; raises OSError."""
        return self._read(path, self._list)

    def open(self, path: str) -> int:
        """A descriptor of a regular file, for reading; raises OSError."""
        return self._read(path, self._open)

    def _read(self, path: str, read: Callable[[str], _Read]) -> _Read:
        try:
            return read(path)
        except PermissionError:
            if not self._opens_up:
                raise
        with self._opened_up(path):
            return read(path)

    def _list(self, path: str) -> Sequence[Listed]:
        with os.scandir(self._place(path)) as found:
            return sorted(
                self._listed(f"{path}/{each.name}" if path else each.name, each) for each in found
            )

    def _listed(self, path: str, found: os.DirEntry[str]) -> Listed:
        status = found.stat(follow_symlinks=False)
        mode = status.st_mode
        return Listed(
            name=found.name,
            mode=mode,
            size=status.st_size,
            mtime_ns=status.st_mtime_ns,
            ctime_ns=status.st_ctime_ns,
            inode=status.st_ino,
            num_links=status.st_nlink,
            device=status.st_rdev,
            target=os.readlink(found.path) if stat.S_ISLNK(mode) else "",
            is_opaque=stat.S_ISDIR(mode) and self._opens_up and self._read(path, self._is_opaque),
        )

    def _is_opaque(self, path: str) -> bool:
        try:
            return os.getxattr(self._place(path), _OPAQUE, follow_symlinks=False) == b"y"
        except OSError as error:
            if error.errno in (errno.EACCES, errno.EPERM):
                raise
            return False

    def _open(self, path: str) -> int:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(self._place(path), flags)

    @contextmanager
    def _opened_up(self, path: str) -> Iterator[None]:
        """While the block is executed, the owner may read a path and the folders on the way."""
        places = [self._folder, *(self._place(each) for each in [*parents_of(path), path] if each)]
        with ExitStack() as closing:
            for place in places:
                status = os.lstat(place)
                mode = stat.S_IMODE(status.st_mode)
                if mode & stat.S_IRWXU != stat.S_IRWXU and status.st_uid == os.geteuid():
                    os.chmod(place, mode | stat.S_IRWXU)
                    closing.callback(os.chmod, place, mode)
            yield

    def _place(self, path: str) -> str:
        return os.path.join(self._folder, path) if path else self._folder

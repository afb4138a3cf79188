"""Lists folders and opens files."""

from __future__ import annotations

import errno
import os
import stat
from typing import NamedTuple

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
    """Reads one folder, with this process's permissions; paths are relative to it."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def list(self, path: str) -> list[Listed]:
        """What a folder holds, sorted by name; raises OSError."""
        place = os.path.join(self._folder, path) if path else self._folder
        with os.scandir(place) as found:
            listed = [
                _listed(each.path, each.name, each.stat(follow_symlinks=False)) for each in found
            ]
        return sorted(listed)

    def open(self, path: str) -> int:
        """A descriptor of a regular file, for reading; raises OSError."""
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        return os.open(os.path.join(self._folder, path), flags)


def _listed(place: str, name: str, status: os.stat_result) -> Listed:
    mode = status.st_mode
    return Listed(
        name=name,
        mode=mode,
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        num_links=status.st_nlink,
        device=status.st_rdev,
        target=os.readlink(place) if stat.S_ISLNK(mode) else "",
        is_opaque=stat.S_ISDIR(mode) and _is_opaque(place),
    )


def _is_opaque(place: str) -> bool:
    try:
        return os.getxattr(place, _OPAQUE, follow_symlinks=False) == b"y"
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EPERM):
            raise
        return False

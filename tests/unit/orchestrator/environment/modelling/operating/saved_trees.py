"""Trees of files in memory: read from the working folder, and written into it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Iterator
from typing import Any

SavedTree = dict[str, tuple[str, int, Any]]
"""Path -> kind, mode, content or target."""


def read_tree() -> tuple[list[Any], SavedTree]:
    """All that the folder holds: path, kind, mode, content, size, mtime_ns, inode; and to write."""
    found, saved = [], SavedTree()
    for path, status in _walk(""):
        kind, data = _kind(status), b""
        if kind == "file":
            data = content_of(path)
        content = os.readlink(path) if kind == "link" else digest(data) if data else ""
        saved[path] = kind, stat.S_IMODE(status.st_mode), data or content
        size = status.st_size if kind == "file" else 0
        found.append([path, *saved[path][:2], content, size, status.st_mtime_ns, status.st_ino])
    return found, saved


def write_tree(saved: SavedTree) -> None:
    """Make the folder that; hard links are files of their own, and sockets left out."""
    _clear()
    for path, (kind, mode, content) in saved.items():
        if kind == "folder":
            os.mkdir(path)
        elif kind == "link":
            os.symlink(content, path)
        elif kind == "fifo":
            os.mkfifo(path)
        elif kind == "file":
            with open(path, "xb") as file:
                _write_sparse(file, content or b"")
            os.chmod(path, mode)
    for path in reversed(saved):
        if saved[path][0] in ("folder", "fifo"):
            os.chmod(path, saved[path][1])


def separate(paths: list[str]) -> None:
    """Make paths that are hard links of one file hard links of a copy of it."""
    status = os.lstat(paths[0])
    data = content_of(paths[0]) if stat.S_ISREG(status.st_mode) else None
    for number, path in enumerate(paths):
        os.unlink(path)
        if number:
            os.link(paths[0], path)
        elif data is None:
            os.mkfifo(path)
        else:
            with open(path, "xb") as file:
                file.write(data)
        os.chmod(path, stat.S_IMODE(status.st_mode))


def content_of(path: str) -> bytes:
    """The content of a file."""
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(file, "rb") as opened:
        return opened.read()


def digest(data: bytes) -> str:
    """A short digest."""
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _kind(status: os.stat_result) -> str:
    kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    kinds |= {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}
    return kinds.get(stat.S_IFMT(status.st_mode), "other")


def _walk(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """All below a folder, parents first, sorted."""
    for name in sorted(os.listdir(folder or ".")):
        path = f"{folder}/{name}" if folder else name
        status = os.lstat(path)
        yield path, status
        if stat.S_ISDIR(status.st_mode):
            yield from _walk(path)


def _write_sparse(file: Any, data: bytes) -> None:
    """Write data, leaving a hole for the zeros that it begins with."""
    rest = data.lstrip(b"\0") if len(data) > 1 << 16 else data
    file.truncate(len(data) - len(rest))
    file.seek(len(data) - len(rest))
    file.write(rest)


def _clear() -> None:
    for name in os.listdir("."):
        if stat.S_ISDIR(os.lstat(name).st_mode):
            shutil.rmtree(name)
        else:
            os.unlink(name)

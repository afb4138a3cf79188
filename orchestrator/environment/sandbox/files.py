"""Opens files of a workspace for our process, without leaving the workspace."""

from __future__ import annotations

import os
from contextlib import suppress

from . import linux


def open_below(folder: str, path: str, flags: int, mode: int) -> int:
    """Open a file below a folder; with O_CREAT folders on the way are made.

    Raises:
        OSError: also if a link leads out of the folder.
    """
    root = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if flags & os.O_CREAT:
            _make_parents(root, path)
        return linux.open_beneath(root, path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    finally:
        os.close(root)


def _make_parents(root: int, path: str) -> None:
    parent = ""
    for name in path.split("/")[:-1]:
        above = linux.open_beneath(root, parent or ".", os.O_PATH | os.O_DIRECTORY, 0)
        try:
            with suppress(FileExistsError):
                os.mkdir(name, dir_fd=above)
        finally:
            os.close(above)
        parent = f"{parent}/{name}" if parent else name

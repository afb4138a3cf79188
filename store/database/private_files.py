"""Files with users' texts and results: nobody but their user may read them."""

from __future__ import annotations

import logging
import os
import stat
from contextlib import suppress
from pathlib import Path

import platformdirs

logger = logging.getLogger("orchestrate")

_OTHERS = 0o077  # permissions of the group and of all others


def data_folder() -> Path:
    """This program's folder in the user's data: of the default store, and of models."""
    return platformdirs.user_data_path("orchestrate")


def create_private(file: Path) -> bool:
    """Create an empty file, and its folder if that is missing.

    Returns:
        False if the file exists.
    Raises:
        OSError: it cannot be created.
    """
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    try:
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except FileExistsError:
        return False
    return True


def make_private(*paths: Path) -> None:
    """Take the permissions of others from files, or a folder, of this program, with a warning.

    What is missing, no file or folder, or belongs to another user, is left as it is.
    """
    for path in paths:
        with suppress(OSError):
            mode = path.stat().st_mode
            if mode & _OTHERS and (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                path.chmod(stat.S_IMODE(mode) & ~_OTHERS)
                logger.warning("%s could be read by other users: now it is private", path)


def private_folder(folder: Path) -> None:
    """Create a folder of this program, or make it private.

    Raises:
        OSError: it cannot be created.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    make_private(folder)

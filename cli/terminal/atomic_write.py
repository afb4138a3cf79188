"""Files that a command leaves behind: checked beforehand, and never left half-written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from cli.errors import CannotWrite


def prepare_folder(folder: Path) -> None:
    """Make a folder where there is none, and see that files can be written into it.

    Raises:
        CannotWrite: they cannot.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CannotWrite(folder, error.strerror or str(error)) from error


def save(path: Path, text: str) -> None:
    """Write a file as a whole: whoever reads it meets the former one, or all of the new one.

    Raises:
        CannotWrite: the disk is full, or the folder went away.
    """
    unfinished = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(path)
    except OSError as error:
        raise CannotWrite(path, error.strerror or str(error)) from error
    finally:
        unfinished.unlink(missing_ok=True)

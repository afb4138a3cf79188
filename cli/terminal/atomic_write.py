"""Writes result files atomically, and checks beforehand that they can be written."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from cli.errors import CannotWrite


def prepare_folder(folder: Path) -> None:
    """Create a folder if it is missing, and check that files can be written into it.

    Raises:
        CannotWrite: the folder cannot be created or written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise CannotWrite(folder, error.strerror or str(error)) from error


def save(path: Path, text: str) -> None:
    """Replace a file atomically: readers see either the former content or all of the new one.

    Args:
        text: with bytes that are not UTF-8 as lone surrogates.
    Raises:
        CannotWrite: the disk is full, or the folder was removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(text.encode(errors="surrogateescape"))
        temporary.replace(path)
    except OSError as error:
        raise CannotWrite(path, error.strerror or str(error)) from error
    finally:
        temporary.unlink(missing_ok=True)

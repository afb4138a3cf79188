"""Writes one entry of a manifest into a folder."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress

from orchestrator.environment.files.manifest import Entry


def write_entry(place: str, entry: Entry, fill: Callable[[int], None]) -> None:
    """Write a file, link or fifo with its mode and time; a folder, if it is missing, without.

    Args:
        place: where nothing is yet, but perhaps a folder if the entry is one.
        fill: writes the content of a file, which is open, into it.
    Raises:
        OSError.
    """
    match entry.kind:
        case "folder":
            with suppress(FileExistsError):
                os.mkdir(place, 0o700)
        case "link":
            os.symlink(entry.content, place)
            os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
        case "fifo":
            os.mkfifo(place, 0o600)
            os.chmod(place, entry.mode)
            os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns))
        case "file":
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            descriptor = os.open(place, flags, 0o600)
            try:
                fill(descriptor)
                os.fchmod(descriptor, entry.mode)
                os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
            finally:
                os.close(descriptor)
        case "gone":
            raise AssertionError("nothing is written for what is gone")

"""A trace file -> its text, or a named error."""

from __future__ import annotations

import stat
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from serving.workload_errors import BadTrace, TraceMissing

_COMPRESSED: Mapping[bytes, str] = MappingProxyType(
    {
        b"\x1f\x8b": "gunzip",
        b"PK\x03\x04": "unzip",
        b"\x28\xb5\x2f\xfd": "unzstd",
        b"\xfd7zXZ\x00": "unxz",
    }
)
"""First bytes of a compressed file -> the command that decompresses it."""


def content_of(path: Path) -> bytes:
    """A file's bytes.

    Raises:
        TraceMissing: there is no such file.
        BadTrace: it cannot be read, or only once (a pipe).
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # every process reads the file again
            reason = "it is not a regular file, but a directory, a pipe or a device"
            raise BadTrace(str(path), f"{reason}: save it to a file first")
        return path.read_bytes()
    except FileNotFoundError as cause:
        raise TraceMissing(str(path), f"cannot read it: {cause.strerror}") from cause
    except OSError as cause:
        raise BadTrace(str(path), f"cannot read it: {cause.strerror}") from cause


def text_of(path: Path, content: bytes) -> str:
    """A file's text, without a byte order mark, with LF line ends.

    Raises:
        BadTrace: it is empty, compressed or not UTF-8 text.
    """
    for first_bytes, command in _COMPRESSED.items():
        if content.startswith(first_bytes):
            raise BadTrace(str(path), f"it is compressed: {command} it first")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")) or b"\0" in content[:4]:
        raise BadTrace(str(path), "line 1: it is UTF-16 text, not UTF-8: save it as UTF-8")
    lines = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    try:
        text = lines.decode("utf-8-sig")
    except UnicodeDecodeError as cause:
        number = cause.object[: cause.start].count(b"\n") + 1
        byte = cause.object[cause.start]
        reason = f"line {number}: it is not UTF-8 text (byte 0x{byte:02x}): save it as UTF-8"
        raise BadTrace(str(path), reason) from cause
    if not text.strip():
        raise BadTrace(str(path), "it is empty")
    return text

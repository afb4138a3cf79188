"""Copies the content of one open file into another one: holes stay holes."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator

_FICLONE = 0x40049409
_SMALL_BYTES = 1 << 16
_PIECE_BYTES = 1 << 20
_CANNOT = {
    errno.EBADF,
    errno.EINVAL,
    errno.ENOSYS,
    errno.ENOTTY,
    errno.EOPNOTSUPP,
    errno.EPERM,
    errno.EXDEV,
}
"""What says that these two files cannot be copied in this way."""


def copy_content(source: int, target: int) -> None:
    """Copy a file's content into an empty file; by reference where the file system can.

    Raises:
        OSError: for example as the disk is full.
    """
    status = os.fstat(source)
    is_dense = status.st_blocks * 512 >= status.st_size
    if not (is_dense and status.st_size <= _SMALL_BYTES) and _is_cloned(source, target):
        return
    for begin, end in _data_of(source, status.st_size):
        _copy_range(source, target, begin, end)
    os.ftruncate(target, status.st_size)  # there may be a hole at the end


def _is_cloned(source: int, target: int) -> bool:
    try:
        fcntl.ioctl(target, _FICLONE, source)
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
        return False
    return True


def _data_of(descriptor: int, size: int) -> Iterator[tuple[int, int]]:
    """Where the data between the holes of a file begins and ends."""
    at = 0
    while at < size:
        begin = _seek(descriptor, at, os.SEEK_DATA, size)
        if begin < size:
            at = min(_seek(descriptor, begin, os.SEEK_HOLE, size), size)
            yield begin, at
        else:
            at = size


def _seek(descriptor: int, at: int, whence: int, size: int) -> int:
    try:
        return os.lseek(descriptor, at, whence)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return size  # no data after this place


def _copy_range(source: int, target: int, begin: int, end: int) -> None:
    try:
        while end - begin > _SMALL_BYTES:
            copied = os.copy_file_range(source, target, end - begin, begin, begin)
            if not copied:
                break
            begin += copied
    except OSError as error:
        if error.errno not in _CANNOT:
            raise
    while begin < end and (data := os.pread(source, min(end - begin, _PIECE_BYTES), begin)):
        view = memoryview(data)
        while view:
            written = os.pwrite(target, view, begin)
            view, begin = view[written:], begin + written

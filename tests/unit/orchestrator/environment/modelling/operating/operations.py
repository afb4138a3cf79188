"""Operations on the working folder, by system calls: each raises OSError or returns a number."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
import subprocess
from collections.abc import Callable
from typing import Any

from .rights import drop_rights

_SYS_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_libc = ctypes.CDLL(None, use_errno=True)


def _write(path: str, data: str, flags: int = os.O_TRUNC) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK | flags, 0o666)
    try:
        os.write(file, data.encode(errors="surrogateescape"))
    finally:
        os.close(file)


def _append(path: str, data: str) -> None:
    _write(path, data, os.O_APPEND)


def _sparse(path: str, size: int) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NONBLOCK, 0o666)
    try:
        os.ftruncate(file, 0)
        os.pwrite(file, b"end", size)
    finally:
        os.close(file)


def _truncate(path: str, size: int) -> None:
    if not os.path.isfile(path):
        raise OSError(errno.EINVAL, "no file")
    os.truncate(path, size)


def _deep(path: str, name: str, depth: int) -> None:
    for _ in range(depth):
        path = f"{path}/{name}"
        os.mkdir(path)
    _write(f"{path}/bottom", "deep")


def _rmtree(path: str) -> None:
    """Remove a folder in a fixed order, as far as it goes; raises the first error."""
    errors = []
    for name in sorted(os.listdir(path)):
        inner = f"{path}/{name}"
        try:
            if stat.S_ISDIR(os.lstat(inner).st_mode):
                _rmtree(inner)
            else:
                os.unlink(inner)
        except OSError as error:
            errors.append(error)
    if errors:
        raise errors[0]
    os.rmdir(path)


def _link(source: str, target: str) -> None:
    os.link(source, target, follow_symlinks=False)


def _chmod(path: str, mode: int) -> None:
    if os.path.realpath(path) == os.getcwd():
        raise OSError(errno.EINVAL, "the workspace itself")
    os.chmod(path, mode)


def _fifo(path: str) -> None:
    os.mkfifo(path, 0o640)


def _socket(path: str) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)


def _touch(path: str, seconds: int) -> None:
    os.utime(path, (seconds, seconds), follow_symlinks=False)


def _exchange(one: str, other: str) -> None:
    names = [os.fsencode(each) for each in (one, other)]
    number = _SYS_RENAMEAT2[os.uname().machine]
    arguments = _AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE
    if _libc.syscall(number, *arguments) < 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def _enter(path: str) -> None:
    here = os.getcwd()
    os.chdir(path)
    os.chdir(here)


def _become_folder(path: str, name: str) -> None:
    os.unlink(path)
    os.mkdir(path)
    _write(f"{path}/{name}", "in place of a file")


def _become_file(path: str, data: str) -> None:
    _rmtree(path)
    _write(path, data)


def _become_link(path: str, target: str) -> None:
    _rmtree(path) if stat.S_ISDIR(os.lstat(path).st_mode) else os.unlink(path)
    os.symlink(target, path)


def _again(path: str, name: str) -> None:
    _rmtree(path)
    os.mkdir(path)
    _write(f"{path}/{name}", "new")


def _from_nowhere(path: str, data: str) -> None:
    """A file that has a name only once it is written."""
    file = os.open(os.path.dirname(path) or ".", os.O_TMPFILE | os.O_WRONLY, 0o640)
    try:
        os.write(file, data.encode())
        if _libc.linkat(file, b"", _AT_FDCWD, os.fsencode(path), _AT_EMPTY_PATH) < 0:
            raise OSError(ctypes.get_errno(), "linkat")
    finally:
        os.close(file)


def _replace(path: str, data: str) -> None:
    """As editors do: a new file beside, renamed into place."""
    _write(f"{path}~", data)
    os.rename(f"{path}~", path)


def _bash(script: str) -> int:
    arguments = ["/bin/bash", "-c", script]
    ran = subprocess.run(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C"},
        preexec_fn=drop_rights,
    )
    return 1000 + ran.returncode


OPERATIONS: dict[str, Callable[..., Any]] = {
    "write": _write,
    "append": _append,
    "replace": _replace,
    "sparse": _sparse,
    "truncate": _truncate,
    "remove": os.unlink,
    "rmdir": os.rmdir,
    "rmtree": _rmtree,
    "mkdir": os.mkdir,
    "deep": _deep,
    "rename": os.rename,
    "exchange": _exchange,
    "symlink": os.symlink,
    "link": _link,
    "chmod": _chmod,
    "fifo": _fifo,
    "socket": _socket,
    "touch": _touch,
    "become_folder": _become_folder,
    "become_file": _become_file,
    "become_link": _become_link,
    "again": _again,
    "from_nowhere": _from_nowhere,
    "enter": _enter,
    "bash": _bash,
}

"""A program that changes and lists folders: in a sandbox's namespaces, or a plain folder beside.

It is given the descriptor of a socket and the folder in which the package `sandbox` lies. For each
message it forks an operator, which serves the socket that came with the message. An operator is as
confined as a sandbox's programs are when it changes files, and reads all of them when it lists.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

sys.path.insert(0, sys.argv[2])
from sandbox import linux
from sandbox.files import open_below

_CAPABILITY_VERSION_3 = 0x20080522
_CAP_FSETID = 1 << 4
_SYS_RENAMEAT2 = {"x86_64": 316, "aarch64": 276}
_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_AT_EMPTY_PATH = 0x1000
_libc = ctypes.CDLL(None, use_errno=True)

Saved = dict[str, tuple[str, int, Any, tuple[int, int]]]
"""Path -> kind, mode, content or target, inode (device, number)."""


def main() -> None:
    orders = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        data, descriptors, _, _ = socket.recv_fds(orders, 4096, 1)
        if not data:
            return
        if os.fork() == 0:
            orders.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            Operator(socket.socket(fileno=descriptors[0]), json.loads(data)["process"]).serve()
            os._exit(0)
        os.close(descriptors[0])


class Operator:
    """Serves one socket.

    Args:
        process: in whose namespaces it works; 0: none.
    """

    def __init__(self, control: socket.socket, process: int) -> None:
        self._lines = control.makefile("rwb")
        self._folder = "/"
        self._saved: dict[str, Saved] = {}
        linux.die_with_parent(signal.SIGKILL)
        if process:
            places = [f"/proc/{process}/ns/{kind}" for kind in ("user", "mnt")]
            for each in [os.open(place, os.O_RDONLY) for place in places]:
                linux.enter_namespace(each)
                os.close(each)
        elif os.geteuid():
            _become_owner()
        self._permitted = _capabilities()
        os.umask(0o022)

    def serve(self) -> None:
        for line in self._lines:
            message = json.loads(line)
            self._folder = message.pop("folder")
            try:
                os.chdir(self._folder)
                answer = {"value": getattr(self, message.pop("do"))(**message)}
            except Exception as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            finally:
                os.chdir("/")
            self._lines.write(json.dumps(answer).encode() + b"\n")
            self._lines.flush()

    def operate(self, operations: list[list[Any]]) -> list[Any]:
        """Do operations with the rights of a program; what each returns, or its error's number."""
        with self._rights(0):
            return [self._attempt(each) for each in operations]

    def write_as_host(self, path: str, data: str, mode: int | None) -> int:
        """Write a file as the host does for a workspace; an error's number."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with self._rights(self._permitted & ~_CAP_FSETID):
            try:
                file = open_below(self._folder, path, flags, 0o666 if mode is None else mode)
            except OSError as error:
                return error.errno or -1
            try:
                os.write(file, data.encode(errors="surrogateescape"))
                if mode is not None:
                    os.fchmod(file, mode)
            finally:
                os.close(file)
        return 0

    def read_as_host(self, path: str) -> str | int:
        """The digest of a file's content, or an error's number."""
        try:
            file = open_below(self._folder, path, os.O_RDONLY, 0)
        except OSError as error:
            return error.errno or -1
        try:
            return _digest(os.read(file, 1 << 24))
        except OSError as error:
            return error.errno or -1
        finally:
            os.close(file)

    def list(self, key: str = "") -> list[Any]:
        """All that the folder holds: path, kind, mode, content, size, mtime_ns, inode.

        Args:
            key: under which it is also saved for `restore`; "": it is not.
        """
        found, saved = [], Saved()
        for path, status in _walk(""):
            kind, data = _kind(status), b""
            if kind == "file":
                data = _content(path)
            content = os.readlink(path) if kind == "link" else _digest(data) if data else ""
            inode = status.st_dev, status.st_ino
            saved[path] = kind, stat.S_IMODE(status.st_mode), data or content, inode
            size = status.st_size if kind == "file" else 0
            found.append([path, *saved[path][:2], content, size, status.st_mtime_ns, status.st_ino])
        if key:
            self._saved[key] = saved
        return found

    def restore(self, key: str) -> None:
        """Make the folder what was saved; hard links become files of their own, sockets nothing."""
        _clear()
        _fill(self._saved[key])

    def assemble(self, parts: list[tuple[str, str]]) -> None:
        """Make the folder of what different saved ones have at a name and below."""
        _clear()
        found = Saved()
        for name, key in parts:
            for path, each in self._saved[key].items():
                if path.split("/")[0] == name:
                    found[path] = each
        _fill(found)

    def inodes(self, paths: list[str]) -> list[int]:
        """The inode of each path."""
        return [os.lstat(path).st_ino for path in paths]

    def separate(self, paths: list[str]) -> None:
        """Make paths that are hard links of one file hard links of a copy of it."""
        status, data = os.lstat(paths[0]), _content(paths[0])
        for number, path in enumerate(paths):
            os.unlink(path)
            if number:
                os.link(paths[0], path)
                continue
            with open(path, "xb") as file:
                file.write(data)
            os.chmod(path, stat.S_IMODE(status.st_mode))

    def copy_to(self, path: str) -> None:
        """Copy the folder to another place, attributes and all."""
        subprocess.run(["cp", "-a", ".", path], check=True)

    @contextmanager
    def _rights(self, effective: int) -> Iterator[None]:
        _set_effective(effective, self._permitted)
        try:
            yield
        finally:
            _set_effective(self._permitted, self._permitted)

    def _attempt(self, operation: list[Any]) -> Any:
        name, *arguments = operation
        try:
            return OPERATIONS[name](*arguments) or 0
        except OSError as error:
            return error.errno
        finally:
            os.umask(0o022)


def _become_owner() -> None:
    """Have all rights to what belongs to this user."""
    user, group = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER)
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"{user} {user} 1"),
        ("gid_map", f"{group} {group} 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


def _header() -> Any:
    return (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)


def _capabilities() -> int:
    sets = (ctypes.c_uint32 * 6)()
    if _libc.capget(_header(), sets) < 0:
        raise OSError(ctypes.get_errno(), "capget")
    return sets[1] | sets[4] << 32


def _set_effective(effective: int, permitted: int) -> None:
    parts = [effective, permitted, 0]
    sets = (ctypes.c_uint32 * 6)(*(each & 0xFFFFFFFF for each in parts), *(p >> 32 for p in parts))
    if _libc.capset(_header(), sets) < 0:
        raise OSError(ctypes.get_errno(), "capset")


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


def _content(path: str) -> bytes:
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with open(file, "rb") as opened:
        return opened.read()


def _digest(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=12).hexdigest()


def _write_sparse(file: Any, data: bytes) -> None:
    """Write data, leaving a hole for the zeros that it begins with."""
    rest = data.lstrip(b"\0") if len(data) > 1 << 16 else data
    file.truncate(len(data) - len(rest))
    file.seek(len(data) - len(rest))
    file.write(rest)


def _fill(saved: Saved) -> None:
    """Write what was saved into the empty folder."""
    for path, (kind, mode, content, _) in saved.items():
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


def _clear() -> None:
    for name in os.listdir("."):
        if stat.S_ISDIR(os.lstat(name).st_mode):
            shutil.rmtree(name)
        else:
            os.unlink(name)


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
        preexec_fn=_drop,
    )
    return 1000 + ran.returncode


def _drop() -> None:
    permitted = _capabilities()
    _set_effective(permitted, permitted)
    linux.drop_privileges()


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

if __name__ == "__main__":
    main()

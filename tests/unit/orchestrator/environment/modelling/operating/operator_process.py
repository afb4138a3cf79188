"""Changes and lists folders: in a sandbox's namespaces, or a plain folder beside.

The first argument is the descriptor of a socket. For each message an operator is forked, which
serves the socket that came with the message.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from typing import Any

from sandbox import linux
from sandbox.files import open_below

from .operations import OPERATIONS
from .rights import CAP_FSETID, Rights, become_owner
from .saved_trees import SavedTree, digest, read_tree, separate, write_tree


def main() -> None:
    """Serve until the other side is closed."""
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
    """Serves one socket. Each public method but `serve` is a request.

    Args:
        process: in whose namespaces it works; 0: none.
    """

    def __init__(self, control: socket.socket, process: int) -> None:
        self._lines = control.makefile("rwb")
        self._folder = "/"
        self._saved: dict[str, SavedTree] = {}
        linux.die_with_parent(signal.SIGKILL)
        if process:
            places = [f"/proc/{process}/ns/{kind}" for kind in ("user", "mnt")]
            for each in [os.open(place, os.O_RDONLY) for place in places]:
                linux.enter_namespace(each)
                os.close(each)
        elif os.geteuid():
            become_owner()
        self._rights = Rights()
        os.umask(0o022)

    def serve(self) -> None:
        """Answer requests until the other side is closed."""
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
        with self._rights.limited():
            return [_attempt(each) for each in operations]

    def write_as_host(self, path: str, data: str, mode: int | None, keeps_bits: bool) -> int:
        """Write a file as the host does for a workspace; an error's number.

        Args:
            keeps_bits: whether setuid bits stay.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        with self._rights.limited(but=0 if keeps_bits else CAP_FSETID):
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
            return digest(os.read(file, 1 << 24))
        except OSError as error:
            return error.errno or -1
        finally:
            os.close(file)

    def list(self, key: str = "") -> list[Any]:
        """All that the folder holds; see `read_tree`.

        Args:
            key: under which it is also saved for `restore`; "": it is not.
        """
        found, saved = read_tree()
        if key:
            self._saved[key] = saved
        return found

    def restore(self, key: str) -> None:
        """Make the folder what was saved."""
        write_tree(self._saved[key])

    def assemble(self, parts: list[tuple[str, str]]) -> None:
        """Make the folder of what different saved ones have at a name and below."""
        write_tree(
            {
                path: each
                for name, key in parts
                for path, each in self._saved[key].items()
                if path.split("/")[0] == name
            }
        )

    def forget(self) -> None:
        """Forget what was saved, but the base."""
        self._saved = {key: each for key, each in self._saved.items() if key == "base"}

    def inodes(self, paths: list[str]) -> list[int]:
        """The inode of each path."""
        return [os.lstat(path).st_ino for path in paths]

    def separate(self, paths: list[str]) -> None:
        """Make paths that are hard links of one file hard links of a copy of it."""
        separate(paths)


def _attempt(operation: list[Any]) -> Any:
    name, *arguments = operation
    try:
        return OPERATIONS[name](*arguments) or 0
    except OSError as error:
        return error.errno

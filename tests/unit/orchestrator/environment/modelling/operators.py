"""Operators: processes that change and list a workspace's files, or a plain folder's."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import orchestrator.environment
from orchestrator.environment.live_workspace import LiveWorkspace
from orchestrator.environment.trees.sandbox_client import shared_zygote

_PROGRAM = Path(__file__).with_name("tree_operator.py")


class Seen(NamedTuple):
    """One path as an operator lists it."""

    kind: str
    mode: int
    content: str
    size: int
    mtime_ns: int
    inode: int

    @property
    def shown(self) -> tuple[str, int, str, int]:
        """What two equal trees have in common."""
        return self.kind, self.mode, self.content, self.size


Listing = dict[str, Seen]


class OperatorServer:
    """The process from which operators are forked."""

    def __init__(self) -> None:
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        packages = str(Path(orchestrator.environment.__file__).parent)
        with its:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_PROGRAM), str(its.fileno()), packages],
                pass_fds=[its.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._orders = ours

    def operator(self, process: int = 0) -> Operator:
        """An operator in the namespaces of a process; 0: in ours."""
        ours, its = socket.socketpair()
        with its:
            socket.send_fds(
                self._orders, [json.dumps({"process": process}).encode()], [its.fileno()]
            )
        return Operator(ours)

    def close(self) -> None:
        self._orders.close()
        self._process.wait()


class Operator:
    """Sends operations to one operator, and waits for what they return."""

    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._lines = control.makefile("rwb")

    def operate(self, folder: str, operations: list[list[Any]]) -> list[Any]:
        """What each operation returns, or the number of its error."""
        found: list[Any] = self._ask(folder, "operate", operations=operations)
        return found

    def list(self, folder: str, key: str = "") -> Listing:
        """All that a folder holds; with a key it is saved for `restore`."""
        return {path: Seen(*rest) for path, *rest in self._ask(folder, "list", key=key)}

    def do(self, folder: str, name: str, **arguments: Any) -> Any:
        """Another request of the operator, by its name."""
        return self._ask(folder, name, **arguments)

    def close(self) -> None:
        self._lines.close()
        self._control.close()

    def _ask(self, folder: str, name: str, **arguments: Any) -> Any:
        message = {"do": name, "folder": folder} | arguments
        self._lines.write(json.dumps(message).encode() + b"\n")
        self._lines.flush()
        answer = json.loads(self._lines.readline())
        if "error" in answer:
            raise RuntimeError(f"{name} in {folder}: {answer['error']}")
        return answer["value"]


async def process_in(live: LiveWorkspace) -> int:
    """The first process of a workspace's sandbox; 0 if it has no namespaces of its own."""
    found = await live.run(["readlink", "/proc/self/ns/user"])
    namespace = found.check().stdout.strip()
    if namespace == os.readlink("/proc/self/ns/user"):
        return 0
    zygote = shared_zygote()._process.pid
    inits = [init for child in _children(zygote) for init in _children(child)]
    [init] = [each for each in inits if os.readlink(f"/proc/{each}/ns/user") == namespace]
    return init


def _children(process: int) -> list[int]:
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:
        return []
    return [int(each) for each in text.split()]

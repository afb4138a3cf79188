"""Messages between a sandbox's processes and ours: JSON, with descriptors beside it."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NotRequired, TypedDict

MAX_BYTES = 1 << 17
MAX_DESCRIPTORS = 16


Kind = Literal["namespaces", "landlock"]


class Plan(TypedDict):
    """What a sandbox is asked to be.

    Attributes:
        confinement: "namespaces": an overlay and namespaces of its own. "landlock": the machine's
            own files and processes, with rules of which it may write and read.
        at: the base's own path, where the workspace is mounted; without namespaces the folder that
            its programs may write.
        root: the managed folder, whose content it does not see, but `at`.
        layers: lower folders above the base, in the root, the uppermost first.
        upper, work: empty folders in the root. Without namespaces there are no layers, and these
            are "".
        network: whether it has the machine's network; else, with namespaces, only a loopback
            device, and without them only Unix sockets.
        private: folders that it has for itself, empty at first, such as /tmp. Without namespaces
            they must have been made for it, and programs find the first in TMPDIR.
        hide: folders whose content it does not see; without namespaces it sees their files' names.
    """

    confinement: Kind
    at: str
    root: str
    layers: Sequence[str]
    upper: str
    work: str
    network: bool
    private: Sequence[str]
    hide: Sequence[str]


class Limits(TypedDict, total=False):
    """Limits of a command; those that are missing are not set.

    Attributes:
        cpu_s: CPU time of each process, in seconds; then it is killed.
        memory_bytes: addresses of each process: what it has allocated or mapped. Allocating more
            fails.
        processes: processes and threads that the whole sandbox may have when one of this command
            begins another; then that fails. Not enforced without namespaces, nor for root: see
            `Enforcement`.
        file_bytes: size of each file that is written; then the process gets SIGXFSZ.
    """

    cpu_s: int
    memory_bytes: int
    processes: int
    file_bytes: int


class Command(TypedDict):
    """A program to execute in a sandbox.

    Attributes:
        folder: where it begins, a path within the workspace or outside.
        descriptors: numbers under which it has the descriptors that come with the message.
        keeps: whether what it leaves running when it ends goes on; else that is killed.
        terminal: whether its descriptor 0 is a terminal that it controls, for Ctrl-C and jobs.
    """

    arguments: Sequence[str]
    variables: Mapping[str, str]
    folder: str
    descriptors: Sequence[int]
    limits: Limits
    keeps: bool
    terminal: NotRequired[bool]


def send(to: socket.socket, message: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Send a message; the receiver gets duplicates of the descriptors.

    Raises:
        ValueError: the message is longer than MAX_BYTES.
    """
    socket.send_fds(to, [encoded(message)], list(descriptors))


def encoded(message: Mapping[str, Any]) -> bytes:
    """The bytes of a message; raises ValueError as `send`."""
    data = json.dumps(message).encode()  # surrogates of names that are not UTF-8 are escaped
    if len(data) > MAX_BYTES:
        size = f"{len(data)} bytes with its variables; the limit is {MAX_BYTES}"
        raise ValueError(f"a command of {size}. Write it to a file, and run that")
    return data


def receive(source: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and its descriptors; None once the other side is closed."""
    try:
        data, descriptors, _, _ = socket.recv_fds(source, MAX_BYTES, MAX_DESCRIPTORS)
    except ConnectionResetError:
        return None, []
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    return (json.loads(data) if data else None), descriptors

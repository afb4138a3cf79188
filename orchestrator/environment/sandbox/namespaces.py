"""Namespaces: a sandbox with users, mounts, processes and network devices of its own."""

from __future__ import annotations

import fcntl
import os
import re
import signal
import socket
import struct

from . import linux
from .messages import Plan
from .overlay import hide, is_below

_NAMESPACES = (
    linux.CLONE_NEWUSER
    | linux.CLONE_NEWNS
    | linux.CLONE_NEWPID
    | linux.CLONE_NEWIPC
    | linux.CLONE_NEWUTS
)
_SIOCSIFFLAGS = 0x8914
_IFF_UP_RUNNING = 0x41
_COUNTS_BY_NAMESPACE = (5, 14)
"""The version of Linux since which each user namespace counts its processes."""


def enter_namespaces(*, network: bool) -> None:
    """Return as the first process of new namespaces, which end with it, and it with its parent.

    Raises:
        OSError: the system refuses a namespace.
    """
    linux.die_with_parent(signal.SIGKILL)
    user, group = os.geteuid(), os.getegid()
    linux.unshare(_NAMESPACES | (0 if network else linux.CLONE_NEWNET))
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{user} {user} 1")
    _write("/proc/self/gid_map", f"{group} {group} 1")
    first = os.fork()  # only children are in the new PID namespace
    if first:
        os.closerange(3, 4096)
        os.waitpid(first, 0)
        os._exit(0)
    linux.die_with_parent(signal.SIGKILL)
    if not network:
        _bring_up_loopback()


def limits_processes() -> bool:
    """Whether the system counts the processes of a new user namespace; asked outside of one.

    It never limits those of the machine's root, which a container's root may or may not be.
    """
    release = re.match(r"(\d+)\.(\d+)", os.uname().release)
    if release is None or (int(release[1]), int(release[2])) < _COUNTS_BY_NAMESPACE:
        return False
    with open("/proc/self/uid_map") as file:
        first, outside, _ = file.readline().split()
    return (os.geteuid(), first, outside) != (0, "0", "0")


def make_view(plan: Plan) -> int:
    """The mount namespace of programs: all is read-only but the workspace and private folders.

    It is a slave of this process's: what is mounted here appears there.

    Returns:
        A descriptor of the namespace.
    """
    ready, is_ready = os.pipe()
    done, is_done = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            linux.unshare(linux.CLONE_NEWNS)
            linux.mount("none", "/", "", linux.MS_REC | linux.MS_SLAVE)
            linux.set_mount_attributes("/", add=linux.MOUNT_ATTR_RDONLY, recursive=True)
            for folder in (plan["at"], *plan["private"]):
                linux.set_mount_attributes(folder, remove=linux.MOUNT_ATTR_RDONLY)
            for folder in plan["hide"]:
                if not is_below(folder, plan["at"]):
                    hide(folder)
            os.write(is_ready, b"\0")
        except OSError as error:
            os.write(is_ready, str(error).encode())
        os.close(is_done)
        os.read(done, 1)
        os._exit(0)
    for descriptor in (is_ready, done):
        os.close(descriptor)
    problem = os.read(ready, 4096)
    try:
        if problem != b"\0":
            raise OSError(problem.decode() or "the process that makes the view has died")
        return os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.close(is_done)
        os.close(ready)
        os.waitpid(process, 0)


def _bring_up_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sh", b"lo", _IFF_UP_RUNNING)
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, request)


def _write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)

"""Seccomp: system calls that a program in a sandbox may not make."""

from __future__ import annotations

import ctypes
import errno
import struct
from collections.abc import Collection, Sequence

from . import linux

_REFUSED = {
    "add_key": (248, 217),
    "bpf": (321, 280),
    "delete_module": (176, 106),
    "finit_module": (313, 273),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_setup": (425, 425),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pivot_root": (155, 41),
    "request_key": (249, 218),
    "setns": (308, 268),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
"""By name the numbers on each of _MACHINES. Each refers to namespaces, mounts, the kernel itself,
keys that all of a user's processes share, or reaches files past the checks of their folders."""
_CLONE = (56, 220)
_CLONE3 = (435, 435)
_SOCKET = (41, 198)
_MACHINES = ("x86_64", "aarch64")
_AUDIT_ARCHITECTURES = (0xC000003E, 0xC00000B7)
_X32_BIT = 0x40000000
_CLONE_NEW = 0x7E020000
"""All CLONE_NEW flags that clone takes."""

_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_EPERM = _ERRNO | errno.EPERM
_ENOSYS = _ERRNO | errno.ENOSYS

_LOAD = 0x20
_RETURN = 0x06
_JUMP_IF_EQUAL = 0x15
_JUMP_IF_AT_LEAST = 0x35
_JUMP_IF_ANY_BIT = 0x45
_NUMBER, _ARCHITECTURE, _ARGUMENT = 0, 4, 16  # offsets in struct seccomp_data

_PR_SET_SECCOMP = 22
_MODE_FILTER = 2


def compiled_filter(machine: str, families: Collection[int] | None) -> bytes:
    """The filter of one machine's system calls, for `install`.

    Programs for another architecture than the machine's own (32 bits, x32) get ENOSYS throughout.
    clone3 does as well, as a filter cannot read its flags: the C library then takes clone.

    Args:
        families: the kinds of sockets that may be made; None: all.
    Raises:
        OSError: the numbers of this machine's system calls are not known.
    """
    if machine not in _MACHINES:
        known = " and ".join(_MACHINES)
        message = f"sandboxes need {known}; this machine is {machine}"
        raise OSError(errno.ENOSYS, message)
    column = _MACHINES.index(machine)
    program = [
        _step(_LOAD, _ARCHITECTURE),
        *_unless(_JUMP_IF_EQUAL, _AUDIT_ARCHITECTURES[column], _ENOSYS),
        _step(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        program += _if(_JUMP_IF_AT_LEAST, _X32_BIT, _ENOSYS)
    for numbers in _REFUSED.values():
        program += _if(_JUMP_IF_EQUAL, numbers[column], _EPERM)
    program += _if(_JUMP_IF_EQUAL, _CLONE3[column], _ENOSYS)
    program += _for_call(_CLONE[column], _if(_JUMP_IF_ANY_BIT, _CLONE_NEW, _EPERM))
    if families is not None:
        allowed = [step for family in families for step in _if(_JUMP_IF_EQUAL, family, _ALLOW)]
        program += _for_call(_SOCKET[column], [*allowed, _step(_RETURN, _EPERM)])
    return b"".join([*program, _step(_RETURN, _ALLOW)])


def install(program: bytes) -> None:
    """Filter this process's system calls for good, and those of what it executes and forks.

    It must have given up new privileges before.
    """

    class Filter(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("steps", ctypes.c_char_p)]

    given = Filter(len(program) // len(_step(0, 0)), program)
    linux.prctl("SECCOMP", _PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(given))


def require() -> None:
    """Raise OSError if the kernel has no filters; installs none."""
    try:
        linux.prctl("SECCOMP", _PR_SET_SECCOMP, _MODE_FILTER, None)
    except OSError as error:
        if error.errno != errno.EFAULT:
            message = "sandboxes need seccomp filters, which this kernel does not have"
            raise OSError(error.errno, message) from error


def _for_call(number: int, steps: Sequence[bytes]) -> list[bytes]:
    """Steps for one system call, about its first argument; what they let pass is allowed."""
    body = [_step(_LOAD, _ARGUMENT), *steps, _step(_RETURN, _ALLOW)]
    return [_step(_JUMP_IF_EQUAL, number, otherwise=len(body)), *body]


def _if(test: int, value: int, result: int) -> list[bytes]:
    return [_step(test, value, otherwise=1), _step(_RETURN, result)]


def _unless(test: int, value: int, result: int) -> list[bytes]:
    return [_step(test, value, then=1), _step(_RETURN, result)]


def _step(code: int, value: int, *, then: int = 0, otherwise: int = 0) -> bytes:
    """One instruction; a test skips `then` or `otherwise` instructions."""
    return struct.pack("HBBI", code, then, otherwise, value)

"""System calls for namespaces and mounts, which Python's standard library does not have."""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Sequence

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 1
MS_NOSUID = 2
MS_NODEV = 4
MS_NOEXEC = 8
MS_REMOUNT = 32
MS_BIND = 4096
MS_REC = 16384
MS_PRIVATE = 1 << 18
MS_SLAVE = 1 << 19
MS_SHARED = 1 << 20

MNT_DETACH = 2

MOUNT_ATTR_RDONLY = 0x1

_SYS_MOVE_MOUNT = 429
_SYS_FSOPEN = 430
_SYS_FSCONFIG = 431
_SYS_FSMOUNT = 432
_SYS_OPENAT2 = 437
_SYS_MOUNT_SETATTR = 442
_SYS_CAPSET = {"x86_64": 126, "aarch64": 91}

_FSOPEN_CLOEXEC = 1
_FSCONFIG_SET_FLAG = 0
_FSCONFIG_SET_STRING = 1
_FSCONFIG_CMD_CREATE = 6
_FSMOUNT_CLOEXEC = 1
_MOVE_MOUNT_F_EMPTY_PATH = 4
_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000

_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_BENEATH = 0x08

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_SECUREBITS = 28
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_SECBITS_NO_ROOT = 0b101111  # NOROOT, NO_SETUID_FIXUP, NO_CAP_AMBIENT_RAISE and their locks
_CAPABILITY_VERSION_3 = 0x20080522
_MAX_CAPABILITIES = 64

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(flags: int) -> None:
    """Move this process into new namespaces; raises OSError where that is not allowed."""
    _checked(_libc.unshare(flags), "unshare")


def enter_namespace(descriptor: int) -> None:
    """Move this process into the namespace behind a descriptor of /proc/PID/ns."""
    _checked(_libc.setns(descriptor, 0), "setns")


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """Mount a file system of a kind, or change an existing mount by its flags."""
    done = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        kind.encode(),
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    _checked(done, f"mount {kind} at {target}")


def unmount(target: str) -> None:
    """Detach a mount; what still uses it keeps it until then."""
    _checked(_libc.umount2(os.fsencode(target), MNT_DETACH), f"unmount {target}")


def mount_overlay(layers: Sequence[str], upper: str, work: str, target: str) -> None:
    """Mount an overlay.

    By the mount API of Linux 5.2 with a `lowerdir+` for each layer (6.5): the options of mount(2)
    end at 4096 bytes. `volatile`: nothing is synced, as a checkpoint does not rely on the upper
    folder.

    Args:
        layers: lower folders, the uppermost first.
        upper, work: empty folders of one file system.
    """
    context = syscall("fsopen overlay", _SYS_FSOPEN, b"overlay", _FSOPEN_CLOEXEC)
    try:
        for flag in ("userxattr", "volatile"):
            _configure(context, _FSCONFIG_SET_FLAG, flag, None)
        for layer in layers:
            _configure(context, _FSCONFIG_SET_STRING, "lowerdir+", layer)
        _configure(context, _FSCONFIG_SET_STRING, "upperdir", upper)
        _configure(context, _FSCONFIG_SET_STRING, "workdir", work)
        syscall("mount an overlay", _SYS_FSCONFIG, context, _FSCONFIG_CMD_CREATE, None, None, 0)
        mounted = syscall("fsmount", _SYS_FSMOUNT, context, _FSMOUNT_CLOEXEC, 0)
    finally:
        os.close(context)
    try:
        place = os.fsencode(target)
        what = f"move the overlay to {target}"
        syscall(what, _SYS_MOVE_MOUNT, mounted, b"", _AT_FDCWD, place, _MOVE_MOUNT_F_EMPTY_PATH)
    finally:
        os.close(mounted)


def set_mount_attributes(
    target: str, *, add: int = 0, remove: int = 0, recursive: bool = False
) -> None:
    """Change the attributes of a mount, and with `recursive` of all mounts below it."""

    class Attributes(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("set", "clear", "propagation", "userns")]

    attributes = Attributes(add, remove, 0, 0)
    flags = _AT_RECURSIVE if recursive else 0
    size = ctypes.c_size_t(ctypes.sizeof(attributes))
    place, reference = os.fsencode(target), ctypes.byref(attributes)
    what = f"change the mount {target}"
    syscall(what, _SYS_MOUNT_SETATTR, _AT_FDCWD, place, flags, reference, size)


def open_beneath(folder: int, path: str, flags: int, mode: int) -> int:
    """Open a path below an open folder; links that lead out of it are refused (EXDEV)."""

    class How(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint64) for name in ("flags", "mode", "resolve")]

    how = How(flags, mode if flags & os.O_CREAT else 0, _RESOLVE_BENEATH | _RESOLVE_NO_MAGICLINKS)
    reference, size = ctypes.byref(how), ctypes.sizeof(how)
    return syscall(f"open {path}", _SYS_OPENAT2, folder, os.fsencode(path), reference, size)


def die_with_parent(signal_number: int) -> None:
    """Get this signal when the parent process ends."""
    prctl("PDEATHSIG", _PR_SET_PDEATHSIG, signal_number)


def become_subreaper() -> None:
    """Become the parent of all orphaned descendants."""
    prctl("SUBREAPER", _PR_SET_CHILD_SUBREAPER, 1)


def drop_privileges() -> None:
    """Give up all capabilities for good, also those that programs of root would get back."""
    try:
        prctl("SECUREBITS", _PR_SET_SECUREBITS, _SECBITS_NO_ROOT)
        for capability in range(_MAX_CAPABILITIES):
            prctl("CAPBSET_DROP", _PR_CAPBSET_DROP, capability)
    except OSError as error:
        # EINVAL: the kernel has no capability with this number, and none above. EPERM, of a user
        # without capabilities: there is nothing to give up, and NO_NEW_PRIVS keeps it so.
        if error.errno not in (errno.EINVAL, errno.EPERM):
            raise
    prctl("AMBIENT", _PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    syscall("capset", _SYS_CAPSET[os.uname().machine], header, none)
    prctl("NO_NEW_PRIVS", _PR_SET_NO_NEW_PRIVS, 1)


def prctl(what: str, option: int, *arguments: object) -> None:
    """Change a property of this process; raises OSError, which names `what`."""
    given = [*arguments, *(0 for _ in range(4 - len(arguments)))]
    _checked(_libc.prctl(option, *given), f"prctl {what}")


def syscall(what: str, number: int, *arguments: object) -> int:
    """Make a system call; raises OSError, which names `what`."""
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments), what)


def _configure(context: int, command: int, key: str, value: str | None) -> None:
    text = None if value is None else os.fsencode(value)
    what = key if value is None else f"{key}={value}"
    syscall(f"overlay option {what}", _SYS_FSCONFIG, context, command, key.encode(), text, 0)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result

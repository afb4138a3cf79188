"""The rights of an operator: a program's when it changes files, all of them when it reads."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sandbox import linux

CAP_FSETID = 1 << 4

_CAPABILITY_VERSION_3 = 0x20080522
_libc = ctypes.CDLL(None, use_errno=True)


class Rights:
    """The capabilities of this process."""

    def __init__(self) -> None:
        self._all = _permitted()

    @contextmanager
    def limited(self, *, but: int | None = None) -> Iterator[None]:
        """In the block it has none; or all but those of a mask."""
        _set_effective(0 if but is None else self._all & ~but, self._all)
        try:
            yield
        finally:
            _set_effective(self._all, self._all)


def become_owner() -> None:
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


def drop_rights() -> None:
    """Give them up for good, as the programs of a sandbox do."""
    permitted = _permitted()
    _set_effective(permitted, permitted)
    linux.drop_privileges()


def _permitted() -> int:
    sets = (ctypes.c_uint32 * 6)()
    if _libc.capget(_header(), sets) < 0:
        raise OSError(ctypes.get_errno(), "capget")
    return sets[1] | sets[4] << 32


def _set_effective(effective: int, permitted: int) -> None:
    parts = [effective, permitted, 0]
    sets = (ctypes.c_uint32 * 6)(*(each & 0xFFFFFFFF for each in parts), *(p >> 32 for p in parts))
    if _libc.capset(_header(), sets) < 0:
        raise OSError(ctypes.get_errno(), "capset")


def _header() -> Any:
    return (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)

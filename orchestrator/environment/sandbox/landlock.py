"""Landlock: which files a program may write and read, where it has no mount namespace."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Collection, Iterator, Sequence

from . import linux

_SYS_CREATE_RULESET = 444
_SYS_ADD_RULE = 445
_SYS_RESTRICT_SELF = 446
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_EXECUTE = 1 << 0
_WRITE_FILE = 1 << 1
_READ_FILE = 1 << 2
_READ_FOLDER = 1 << 3
_MAKE_CHARACTER_DEVICE = 1 << 6
_MAKE_BLOCK_DEVICE = 1 << 11
_REFER = 1 << 13
_TRUNCATE = 1 << 14
_DEVICE_CONTROL = 1 << 15
_OF_FIRST_VERSION = (1 << 13) - 1
_SINCE = {_REFER: 2, _TRUNCATE: 3, _DEVICE_CONTROL: 5}
"""Rights that came with a later version."""

_SCOPES = 0b11  # abstract Unix sockets, and signals
_SCOPES_SINCE = 6

_DEVICES = ("null", "zero", "full", "random", "urandom")

_GAPS_BEFORE = {"truncate": 3, "devices": 5, "signals": 6, "abstract sockets": 6}
"""What is confined only from a version of Landlock on."""


def version() -> int:
    """The version of this kernel's Landlock; 0 where it has none."""
    try:
        size = ctypes.c_size_t(0)
        return linux.syscall("Landlock", _SYS_CREATE_RULESET, None, size, _CREATE_RULESET_VERSION)
    except OSError:
        return 0


def gaps(version: int) -> list[str]:
    """What this version does not confine; names in `Enforcement`."""
    if version == 0:
        return ["landlock", "attributes"]
    missing = [name for name, since in _GAPS_BEFORE.items() if version < since]
    return ["attributes", *missing]


def ruleset(version: int, *, write: Sequence[str], hide: Sequence[str]) -> int:
    """A descriptor of rules for `restrict`.

    Args:
        write: folders in which programs may do all but make devices.
        hide: folders whose files they may not read, but those in `write`. Landlock only allows: so
            everything beside the way to a hidden folder is allowed. What is made beside the way
            later is not.
    """
    handled = _OF_FIRST_VERSION & ~_READ_FOLDER
    handled |= sum(right for right, since in _SINCE.items() if version >= since)
    attributes = struct.pack("QQQ", handled, 0, _SCOPES if version >= _SCOPES_SINCE else 0)
    attributes = attributes[: 24 if version >= _SCOPES_SINCE else 8]
    size = ctypes.c_size_t(len(attributes))
    rules = linux.syscall("Landlock", _SYS_CREATE_RULESET, attributes, size, 0)
    for folder in write:
        _allow(rules, folder, handled & ~(_MAKE_CHARACTER_DEVICE | _MAKE_BLOCK_DEVICE))
    for name in _DEVICES:
        rights = _WRITE_FILE | _READ_FILE | _TRUNCATE | _DEVICE_CONTROL
        _allow_if_there(rules, f"/dev/{name}", handled & rights)
    for place in _beside({os.path.realpath(folder) for folder in hide}):
        _allow_if_there(rules, place, _READ_FILE | _EXECUTE)
    return rules


def restrict(rules: int) -> None:
    """Confine this process for good, and what it executes and forks."""
    linux.syscall("Landlock", _SYS_RESTRICT_SELF, rules, 0)


def _beside(hidden: Collection[str]) -> Iterator[str]:
    """The largest hierarchies in which nothing hidden lies."""
    on_the_way: dict[str, set[str]] = {}
    for place in hidden:
        while place != "/":
            parent, name = os.path.split(place)
            on_the_way.setdefault(parent, set()).add(name)
            place = parent
    waiting = ["/"]
    while waiting:
        place = waiting.pop()
        if place in hidden:
            continue
        if place not in on_the_way:
            yield place
            continue
        names = {*_names(place), *on_the_way[place]}
        waiting += [os.path.join(place, name) for name in names]


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:  # it may be passed through, but not listed
        return []


def _allow(rules: int, place: str, rights: int) -> None:
    descriptor = os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, descriptor)
        linux.syscall("Landlock", _SYS_ADD_RULE, rules, _RULE_PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _allow_if_there(rules: int, place: str, rights: int) -> None:
    try:
        if not os.path.islink(place):  # what it leads to has rules of its own
            _allow(rules, place, rights)
    except (FileNotFoundError, PermissionError):
        return

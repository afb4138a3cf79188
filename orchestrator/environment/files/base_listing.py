"""What a base folder holds, by stat alone: seen again, it tells what its user has changed."""

from __future__ import annotations

import json
import os
import stat
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from blake3 import blake3

from orchestrator.environment.files.manifest import Kind

_FOLDER, _LINK, _FILE, _FIFO = stat.S_IFDIR, stat.S_IFLNK, stat.S_IFREG, stat.S_IFIFO


class ListedEntry(NamedTuple):
    """One path of a base.

    Attributes:
        mode: permission bits.
        size, mtime_ns: of a file; else 0, as a folder's change whenever a name in it does.
        target: of a link; else "".
    """

    kind: Kind
    mode: int = 0
    size: int = 0
    mtime_ns: int = 0
    target: str = ""


@dataclass(frozen=True)
class BaseListing:
    """The paths of a base. Two listings are equal if and only if their identities are.

    Attributes:
        entries: by path, relative to the base.
        left_out: sockets and devices, which no state can hold.
        unreadable: folders whose names this user may not list.
    """

    entries: Mapping[str, ListedEntry]
    left_out: tuple[str, ...] = field(default=(), compare=False)
    unreadable: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def identity(self) -> str:
        """BLAKE3 of the entries, in hex."""
        return blake3(self._entries_as_json).hexdigest()

    def changed_since(self, before: BaseListing) -> list[str]:
        """The paths at which the two listings differ, sorted."""
        ours, theirs = self.entries, before.entries
        changed = {path for path, entry in ours.items() if theirs.get(path) != entry}
        return sorted(changed | (theirs.keys() - ours.keys()))

    def to_bytes(self) -> bytes:
        """For `from_bytes`."""
        rest = json.dumps([self.left_out, self.unreadable]).encode()
        return zlib.compress(self._entries_as_json + b"\n" + rest, level=1)

    @classmethod
    def from_bytes(cls, data: bytes) -> BaseListing:
        """The listing that `to_bytes` wrote; raises ValueError if it is none."""
        try:
            entries, left_out, unreadable = cls._read(data)
        except (zlib.error, TypeError, KeyError) as error:
            raise ValueError(f"not a listing of a base: {error}") from error
        return cls(entries, left_out, unreadable)

    @staticmethod
    def _read(data: bytes) -> tuple[dict[str, ListedEntry], tuple[str, ...], tuple[str, ...]]:
        columns, rest = zlib.decompress(data).split(b"\n")
        paths, *others = json.loads(columns)
        entries = dict(zip(paths, map(ListedEntry, *others), strict=True)) if paths else {}
        left_out, unreadable = json.loads(rest)
        return entries, tuple(left_out), tuple(unreadable)

    @cached_property
    def _entries_as_json(self) -> bytes:
        paths = sorted(self.entries)
        columns = zip(*(self.entries[path] for path in paths), strict=True)
        return json.dumps([paths, *columns], separators=(",", ":")).encode()


def list_base(folder: Path) -> BaseListing:
    """List a base; reads no file.

    Raises:
        OSError: the folder itself cannot be listed.
    """
    entries: dict[str, ListedEntry] = {}
    left_out: list[str] = []
    unreadable: list[str] = []
    folders = [""]
    while folders:
        parent = folders.pop()
        prefix = f"{parent}/" if parent else ""
        place = os.path.join(folder, parent)
        try:
            with os.scandir(place) as found:
                for each in found:
                    _list_one(each, prefix + each.name, entries, folders, left_out)
        except PermissionError:
            if not parent:
                raise
            unreadable.append(parent)
        except (FileNotFoundError, NotADirectoryError):  # removed meanwhile
            if not parent:
                raise
    return BaseListing(entries, tuple(sorted(left_out)), tuple(sorted(unreadable)))


def _list_one(
    found: os.DirEntry[str],
    path: str,
    entries: dict[str, ListedEntry],
    folders: list[str],
    left_out: list[str],
) -> None:
    try:
        status = found.stat(follow_symlinks=False)
        kind, mode = stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode)
        if kind == _FILE:
            entries[path] = ListedEntry("file", mode, status.st_size, status.st_mtime_ns)
        elif kind == _FOLDER:
            entries[path] = ListedEntry("folder", mode)
            folders.append(path)
        elif kind == _LINK:
            entries[path] = ListedEntry("link", mode, target=os.readlink(found.path))
        elif kind == _FIFO:
            entries[path] = ListedEntry("fifo", mode)
        else:
            left_out.append(path)
    except FileNotFoundError:  # removed meanwhile
        return

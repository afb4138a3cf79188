"""Reads a folder with all that lies in it, and hashes what may have changed since the last time."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import NamedTuple

from orchestrator.environment.files.folder_reading import FolderReader, Listed
from orchestrator.environment.files.manifest import Entry, Kind

_WHITEOUT = 0
"""Device number of the character devices by which an overlay marks what is deleted."""

Keep = Callable[[int, int], str]
"""Called with a descriptor and the size of a file: stores the content and returns its digest."""


class Signature(NamedTuple):
    """What changes whenever a file's content or attributes do, unless it is mapped in memory."""

    inode: int
    size: int
    mode: int
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Signature:
        """The signature of a file by its status."""
        return cls(
            status.st_ino, status.st_size, status.st_mode, status.st_mtime_ns, status.st_ctime_ns
        )


@dataclass(slots=True)
class FolderScan:
    """What a folder holds.

    Attributes:
        entries: by path; kind "gone" for an overlay's marks of deleted files.
        opaque: folders below which an overlay shows nothing of lower layers.
        left_out: sockets and devices, which cannot be kept.
        linked: names of files that have further names (hard links).
        signatures: of files, for the next scan.
        num_hashed: how many files were read.
    """

    entries: dict[str, Entry] = field(default_factory=dict)
    opaque: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)
    linked: set[str] = field(default_factory=set)
    signatures: dict[str, Signature] = field(default_factory=dict)
    num_hashed: int = 0


def scan_folder(
    reader: FolderReader,
    *,
    keep: Keep,
    before: FolderScan | None = None,
    unsafe: Collection[str] = (),
) -> FolderScan:
    """Scan a folder.

    Args:
        before: an earlier scan of the same folder: files with the same signature are not read.
        unsafe: files that are read in any case, as a change of them may not show.
    """
    scan, before = FolderScan(), before or FolderScan()
    folders = [""]
    while folders:
        parent = folders.pop()
        for each in reader.list(parent):
            path = f"{parent}/{each.name}" if parent else each.name
            kind = kind_of(each)
            if kind is None:
                scan.left_out.append(path)
                continue
            content = each.target
            if kind == "file":
                signature = _signature(each)
                if path not in unsafe and before.signatures.get(path) == signature:
                    content = before.entries[path].content
                else:
                    content, signature = _kept(reader, path, keep)
                    scan.num_hashed += 1
                if path not in unsafe:  # it may be changed yet, without a change of its signature
                    scan.signatures[path] = signature
            if kind == "folder":
                folders.append(path)
                if each.is_opaque:
                    scan.opaque.add(path)
            elif each.num_links > 1:
                scan.linked.add(path)
            size = each.size if kind == "file" else 0
            mode = 0 if kind == "gone" else stat.S_IMODE(each.mode)
            scan.entries[path] = Entry(kind, mode, content, size, each.mtime_ns)
    return scan


def kind_of(listed: Listed) -> Kind | None:
    """What a manifest says of it; None: it cannot be kept."""
    mode = listed.mode
    if stat.S_ISCHR(mode) and listed.device == _WHITEOUT:
        return "gone"
    kinds: dict[int, Kind] = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "folder",
        stat.S_IFLNK: "link",
        stat.S_IFIFO: "fifo",
    }
    return kinds.get(stat.S_IFMT(mode))


def _kept(reader: FolderReader, path: str, keep: Keep) -> tuple[str, Signature]:
    descriptor = reader.open(path)
    try:
        status = os.fstat(descriptor)  # before it is read, and after its mode was put back
        return keep(descriptor, status.st_size), Signature.of(status)
    finally:
        os.close(descriptor)


def _signature(listed: Listed) -> Signature:
    return Signature(listed.inode, listed.size, listed.mode, listed.mtime_ns, listed.ctime_ns)

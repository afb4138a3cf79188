"""Writes a manifest as a folder that an overlay can take as a layer above the base."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from orchestrator.environment.files.blob_store import BlobStore
from orchestrator.environment.files.manifest import Entry, Manifest, parents_of


def build_layer(
    folder: Path, part: Manifest, blobs: BlobStore, base: Path, *, whole: Manifest
) -> None:
    """Write a layer.

    Args:
        folder: does not exist yet.
        part: what the layer holds of a manifest, the rest of which is in layers below.
        whole: that manifest.
        base: an overlay shows the attributes of its uppermost folder, so those of the base that
            hold changes are copied.
    Raises:
        FileNotFoundError: a file's content is not stored.
    """
    folder.mkdir(parents=True)
    alike = _alike(whole)
    for path in sorted(part):
        _write(folder, path, part[path], blobs, may_link=part[path] not in alike)
    _set_folders(folder, part, whole, base)


def remove_folder(folder: Path) -> None:
    """Remove a folder with all in it, whatever the modes; does nothing if it is not there."""

    if not os.path.lexists(folder):
        return
    os.chmod(folder, 0o700)
    for place, folders, _ in os.walk(folder):
        for name in folders:
            inner = os.path.join(place, name)
            if not os.path.islink(inner):
                os.chmod(inner, 0o700)  # before os.walk enters it
    shutil.rmtree(folder)


def _alike(manifest: Manifest) -> set[Entry]:
    """What several paths have: as hard links of one file, programs would take them for one."""
    seen, alike = set[Entry](), set[Entry]()
    for entry in manifest.values():
        if entry.kind == "file":
            (alike if entry in seen else seen).add(entry)
    return alike


def _write(layer: Path, path: str, entry: Entry, blobs: BlobStore, *, may_link: bool) -> None:
    place = layer / path
    for parent in parents_of(path):
        (layer / parent).mkdir(exist_ok=True)
    match entry.kind:
        case "folder":
            place.mkdir(exist_ok=True)
        case "link":
            place.symlink_to(entry.content)
            os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
        case "fifo":
            os.mkfifo(place, entry.mode)
            os.chmod(place, entry.mode)
        case "gone":
            os.mknod(place, stat.S_IFCHR, 0)
        case "file":
            if may_link and blobs.link(entry, str(place)):
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            descriptor = os.open(place, flags, 0o600)
            try:
                blobs.copy_to(entry.content, descriptor)
                os.fchmod(descriptor, entry.mode)
                os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))
            finally:
                os.close(descriptor)


def _set_folders(layer: Path, part: Manifest, whole: Manifest, base: Path) -> None:
    """Give folders their modes and times, the innermost first."""
    folders = {path for path, entry in part.items() if entry.kind == "folder"}
    folders |= {parent for path in part for parent in parents_of(path)}
    for path in sorted(folders, reverse=True):
        if path in whole:
            mode, mtime_ns = whole[path].mode, whole[path].mtime_ns
        else:
            status = os.lstat(base / path)
            mode, mtime_ns = stat.S_IMODE(status.st_mode), status.st_mtime_ns
        os.chmod(layer / path, mode)
        os.utime(layer / path, ns=(mtime_ns, mtime_ns))
    root = os.stat(base)  # an overlay shows its uppermost root
    os.chmod(layer, stat.S_IMODE(root.st_mode))

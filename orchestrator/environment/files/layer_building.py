"""Writes a manifest as a folder that an overlay can take as a layer above the base."""

from __future__ import annotations

import itertools
import os
import stat
from pathlib import Path

from orchestrator.environment.files.blob_store import BlobStore
from orchestrator.environment.files.entry_writing import write_entry
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
    """Remove a folder with all in it, whatever the modes; does nothing if it is not there.

    Inner folders are moved up first, so that it may be deeper than paths can be long.
    """
    if not os.path.lexists(folder):
        return
    os.chmod(folder, 0o700)
    unique = f"{folder}/.{os.urandom(8).hex()}."
    numbers, waiting = itertools.count(), [str(folder)]
    while waiting:
        place = waiting.pop()
        with os.scandir(place) as found:
            inner = [(each.path, each.is_dir(follow_symlinks=False)) for each in found]
        moved = []
        for path, is_folder in inner:
            if not is_folder:
                os.unlink(path)
                continue
            os.chmod(path, 0o700)
            moved.append(f"{unique}{next(numbers)}")
            os.rename(path, moved[-1])
        if place != str(folder):
            os.rmdir(place)
        waiting += moved
    os.rmdir(folder)


def _alike(manifest: Manifest) -> set[Entry]:
    """What several paths have: as hard links of one file, programs would take them for one."""
    seen, alike = set[Entry](), set[Entry]()
    for entry in manifest.values():
        if entry.kind == "file":
            (alike if entry in seen else seen).add(entry)
    return alike


def _write(layer: Path, path: str, entry: Entry, blobs: BlobStore, *, may_link: bool) -> None:
    place = layer / path
    if not place.parent.is_dir():
        os.makedirs(place.parent)
    if entry.kind == "gone":
        os.mknod(place, stat.S_IFCHR, 0)
    elif not (entry.kind == "file" and may_link and blobs.link(entry, str(place))):
        write_entry(str(place), entry, lambda target: blobs.copy_to(entry.content, target))


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

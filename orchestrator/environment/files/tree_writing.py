"""Makes a folder show other files, and touches only what differs."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from orchestrator.environment.files.base_folder import BaseFolder
from orchestrator.environment.files.blob_store import BlobStore
from orchestrator.environment.files.content_copying import copy_content
from orchestrator.environment.files.entry_writing import write_entry
from orchestrator.environment.files.folder_scan import FolderScan, Signature
from orchestrator.environment.files.layer_building import remove_folder
from orchestrator.environment.files.manifest import Entry
from orchestrator.environment.files.whole_tree import (
    AS_BASE,
    BaseEntries,
    Shown,
    is_folder,
    is_same,
)


class WritingStopped(Exception):
    """The writer was told to stop; what the folder shows is unfinished."""


class TreeWriter:
    """Writes one folder from the base and the stored contents; nothing else may run in it.

    Args:
        entries: of the base; files that turn out to be unreadable are closed there.
        stopping: once it is set, a call in another thread ends with WritingStopped.
    """

    def __init__(
        self,
        folder: str,
        base: BaseFolder,
        entries: BaseEntries,
        blobs: BlobStore,
        stopping: threading.Event,
    ) -> None:
        self._folder = folder
        self._base = base
        self._entries = entries
        self._blobs = blobs
        self._stopping = stopping

    def show(self, wanted: Shown, now: FolderScan) -> FolderScan:
        """Make the folder show something; hard links become files of their own.

        Args:
            wanted: sorted by path, parents first.
            now: what it shows; each file was hashed, or is as this has written it.
        Returns:
            What a scan finds from now on.
        Raises:
            FileNotFoundError: a content is not stored; nothing was changed.
            OSError: for example as the disk is full.
        """
        now = _without_linked(now)
        different = [path for path in wanted if not self._is_shown(path, wanted[path], now)]
        self._require_stored(wanted[path] for path in different)
        self._open_up(now)
        self._remove(sorted({*now.left_out, *(path for path in now.entries if path not in wanted)}))
        entries = dict(wanted)
        for path in different:
            if self._stopping.is_set():
                raise WritingStopped
            entries[path] = self._write(path, wanted[path], now.entries.get(path))
        signatures = self._set_attributes(entries, now, set(different))
        return FolderScan(entries=entries, signatures=signatures)

    def _is_shown(self, path: str, wanted: Entry, now: FolderScan) -> bool:
        present = now.entries.get(path)
        if present is None or is_same(wanted, present):
            return present is not None
        is_to_be_as_base = wanted.kind == "file" and wanted.content == AS_BASE
        return is_to_be_as_base and self._base.is_same(path, present)

    def _require_stored(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            if entry.kind == "file" and entry.content != AS_BASE:
                place = self._blobs.path_of(entry.content)
                if not place.exists():
                    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(place))

    def _open_up(self, now: FolderScan) -> None:
        """Give the owner access to all folders, the outermost first."""
        os.chmod(self._folder, 0o700)
        for path in sorted(path for path, entry in now.entries.items() if is_folder(entry)):
            if now.entries[path].mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(self._place(path), now.entries[path].mode | stat.S_IRWXU)

    def _remove(self, paths: Iterable[str]) -> None:
        """Remove paths with all below them; parents come first."""
        removed: set[str] = set()
        for path in paths:
            if path.rpartition("/")[0] not in removed:
                _remove(self._place(path))
            removed.add(path)

    def _write(self, path: str, wanted: Entry, present: Entry | None) -> Entry:
        """Write one entry, but for what `_set_attributes` does; returns what is there then."""
        place = self._place(path)
        if present is not None:
            if (present.kind, present.content) == (wanted.kind, wanted.content):
                return wanted
            _remove(place)
        if wanted.kind != "file" or wanted.content != AS_BASE:
            write_entry(place, wanted, lambda file: self._blobs.copy_to(wanted.content, file))
            return wanted
        try:
            source = self._base.open(path)
        except PermissionError:
            self._entries.close(path)
            closed = self._entries.entries[path]
            write_entry(place, closed, lambda _: None)
            return closed
        try:
            write_entry(place, wanted, lambda file: copy_content(source, file))
        finally:
            os.close(source)
        return wanted

    def _set_attributes(
        self, entries: Shown, now: FolderScan, written: set[str]
    ) -> dict[str, Signature]:
        """Give all their modes and times, folders last; returns the signatures of files."""
        signatures: dict[str, Signature] = {}
        for path, entry in entries.items():
            if is_folder(entry):
                continue
            is_as_it_was = path not in written and now.entries[path].mtime_ns == entry.mtime_ns
            if not is_as_it_was:
                self._set_one(path, entry)
            if entry.kind == "file":
                if is_as_it_was and path in now.signatures:
                    signatures[path] = now.signatures[path]
                else:
                    signatures[path] = Signature.of(os.lstat(self._place(path)))
        for path in reversed([path for path, entry in entries.items() if is_folder(entry)]):
            self._set_one(path, entries[path])
        root = os.stat(self._base.folder)
        os.utime(self._folder, ns=(root.st_mtime_ns, root.st_mtime_ns))
        os.chmod(self._folder, stat.S_IMODE(root.st_mode))
        return signatures

    def _set_one(self, path: str, entry: Entry) -> None:
        place = self._place(path)
        status = os.lstat(place)
        if status.st_mtime_ns != entry.mtime_ns:
            os.utime(place, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)
        if entry.kind != "link" and stat.S_IMODE(status.st_mode) != entry.mode:
            os.chmod(place, entry.mode)

    def _place(self, path: str) -> str:
        return f"{self._folder}/{path}"


def _without_linked(now: FolderScan) -> FolderScan:
    """A scan in which hard links are nothing that can be kept, so that each is written anew."""
    entries = {path: each for path, each in now.entries.items() if path not in now.linked}
    return replace(now, entries=entries, left_out=[*now.left_out, *now.linked])


def _remove(place: str) -> None:
    if os.path.isdir(place) and not os.path.islink(place):
        remove_folder(Path(place))
    else:
        os.unlink(place)

"""Finds the documents in a folder, without reading them."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__"})


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A document.

    Attributes:
        file: path relative to the folder, with "/" between its parts.
        size: bytes.
        mtime_ns: time of the last change, nanoseconds since the epoch.
    """

    file: str
    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class SkippedFile:
    """A file, folder or link that was skipped although it may be a document, and the reason."""

    file: str
    reason: str


@dataclass(frozen=True, slots=True)
class FolderScan:
    """The documents of a folder.

    Attributes:
        found: the documents, ordered by file.
        skipped: ordered by file.
        num_ignored: files that are hidden or have another suffix.
    """

    found: tuple[FoundFile, ...]
    skipped: tuple[SkippedFile, ...]
    num_ignored: int


def scan_folder(folder: Path, *, suffixes: tuple[str, ...], max_file_bytes: int) -> FolderScan:
    """Find the documents in a folder and its sub-folders.

    Hidden files and folders and node_modules are ignored. A link is followed only if its target is
    a file inside the folder that is not found under its own name. So no file outside the folder is
    read, no document is found twice, and loops of links end.

    Args:
        folder: resolved; it exists.
        suffixes: lower case, with their dots.
        max_file_bytes: larger files are skipped.
    """
    scan = _Scan(folder, suffixes, max_file_bytes)
    for entry in scan.walk():
        scan.visit(entry)
    for link in sorted(scan.links, key=lambda entry: entry.path):
        scan.visit_link(link)
    return FolderScan(
        found=tuple(sorted(scan.found, key=lambda found: found.file)),
        skipped=tuple(sorted(scan.skipped, key=lambda skipped: skipped.file)),
        num_ignored=scan.num_ignored,
    )


class _Scan:
    def __init__(self, folder: Path, suffixes: tuple[str, ...], max_file_bytes: int) -> None:
        self.folder = folder
        self.suffixes = suffixes
        self.max_file_bytes = max_file_bytes
        self.found: list[FoundFile] = []
        self.skipped: list[SkippedFile] = []
        self.links: list[os.DirEntry[str]] = []
        self.num_ignored = 0
        self._inodes: set[tuple[int, int]] = set()

    def walk(self) -> Iterator[os.DirEntry[str]]:
        """All files and links in the folder and its sub-folders; links are not followed."""
        folders = [str(self.folder)]
        while folders:
            folder = folders.pop()
            try:
                with os.scandir(folder) as listing:
                    entries = sorted(listing, key=lambda entry: entry.name)
            except OSError as error:
                self.skip(folder, f"its files cannot be listed: {error.strerror}")
                continue
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    yield entry
                elif not entry.name.startswith(".") and entry.name not in _SKIPPED_FOLDERS:
                    folders.append(entry.path)

    def visit(self, entry: os.DirEntry[str]) -> None:
        if entry.name.startswith("."):
            self.num_ignored += 1
        elif entry.is_symlink():
            self.links.append(entry)
        elif not entry.name.lower().endswith(self.suffixes):
            self.num_ignored += 1
        else:
            self._add(entry)

    def visit_link(self, entry: os.DirEntry[str]) -> None:
        try:
            target = Path(entry.path).resolve(strict=True)
        except (OSError, RuntimeError):  # a loop is a RuntimeError before Python 3.13
            self.skip(entry.path, "the link is broken or part of a loop")
            return
        is_folder = target.is_dir()
        if not is_folder and not entry.name.lower().endswith(self.suffixes):
            self.num_ignored += 1
        elif not target.is_relative_to(self.folder):
            self.skip(entry.path, "the link points out of the corpus; copy its target into it")
        elif is_folder:
            self.skip(entry.path, "links to folders are not followed")
        else:
            self._add(entry)

    def _add(self, entry: os.DirEntry[str]) -> None:
        try:
            status = entry.stat()
        except OSError as error:
            self.skip(entry.path, f"it cannot be read: {error.strerror}")
            return
        inode = (status.st_dev, status.st_ino)
        if not stat.S_ISREG(status.st_mode):
            self.skip(entry.path, "it is not a regular file")
        elif status.st_size > self.max_file_bytes:
            size, limit = status.st_size, self.max_file_bytes
            self.skip(entry.path, f"it is too large: {size:,} bytes, the limit is {limit:,}")
        elif entry.is_symlink() and inode in self._inodes:
            self.skip(entry.path, "the link points to a document that was found already")
        elif not _is_text(entry.path):
            self.skip(entry.path, "its name is not valid text; rename it")
        else:
            self._inodes.add(inode)
            file = self._relative(entry.path)
            self.found.append(FoundFile(file, status.st_size, status.st_mtime_ns))

    def skip(self, path: str, reason: str) -> None:
        self.skipped.append(SkippedFile(self._relative(path), reason))

    def _relative(self, path: str) -> str:
        file = Path(path).relative_to(self.folder).as_posix()
        return file.encode("utf-8", "backslashreplace").decode("utf-8")


def _is_text(path: str) -> bool:
    # A name that is not valid UTF-8 has lone surrogates here: it could be neither stored nor
    # printed in a citation.
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True

"""Bring an index in step with its folder, reading only the files that changed."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from blake3 import blake3

from agents.tools.corpus_index import CorpusIndex, FileEntry, StoredFile
from agents.tools.errors import CorpusEmpty
from agents.tools.folder_scan import FoundFile, SkippedFile, scan_folder
from agents.tools.readers import SUFFIXES, Unreadable, read_document

# One transaction each: a kill loses at most this much work, and other processes wait no longer.
_BATCH_BYTES = 4_000_000
_BATCH_FILES = 500
# Two changes within one tick of the file system's clock bear the same time.
_CLOCK_TICK_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """How far the indexing is.

    Attributes:
        files_done: files read so far.
        files_total: files to read: those that are new or changed.
        file: the file that is read next; "" when all are done.
    """

    files_done: int
    files_total: int
    file: str


OnProgress = Callable[[IndexProgress], None]


@dataclass(frozen=True, slots=True)
class IndexReport:
    """What the indexing of a folder found and did.

    Attributes:
        num_indexed: files read and indexed this time.
        num_unchanged: files whose passages were kept.
        num_removed: files that are gone, and their passages with them.
        num_ignored: files that are hidden or have another suffix.
        num_passages: passages in the index now.
        num_bytes: size of the files that hold them.
        skipped: what could not be indexed, each with its reason, by file.
        warnings: what is indexed only in part, or had to be built anew.
    """

    num_indexed: int
    num_unchanged: int
    num_removed: int
    num_ignored: int
    num_passages: int
    num_bytes: int
    skipped: tuple[SkippedFile, ...]
    warnings: tuple[str, ...] = ()


def update_index(
    index: CorpusIndex,
    folder: Path,
    *,
    max_file_bytes: int,
    on_progress: OnProgress | None = None,
) -> IndexReport:
    """Read new and changed files, forget vanished ones, and say what was done.

    Args:
        index: prepared.
        folder: resolved.
        max_file_bytes: larger files are skipped.
        on_progress: called before each file and once at the end; what it raises ends the
            indexing, and the next one goes on from there.
    Raises:
        CorpusEmpty: nothing in the folder could be indexed.
        IndexDamaged, CorpusIndexUnavailable: as the index.
    """
    # Known before found: a file that another process adds meanwhile must not seem vanished.
    known = index.files()
    scan = scan_folder(folder, suffixes=SUFFIXES, max_file_bytes=max_file_bytes)
    skipped = {entry.file: entry.reason for entry in scan.skipped}
    stale = [found for found in scan.found if not _is_current(known.get(found.file), found)]
    batch = _Batch(index)
    for num_done, found in enumerate(stale):
        if on_progress:
            on_progress(IndexProgress(num_done, len(stale), found.file))
        try:
            batch.add(_read(folder, found.file, known.get(found.file), max_file_bytes))
        except OSError as error:
            skipped[found.file] = f"it cannot be read: {error.strerror or error}"
    batch.flush()
    if on_progress and stale:
        on_progress(IndexProgress(len(stale), len(stale), ""))

    found_files = {found.file for found in scan.found} - skipped.keys()
    gone = known.keys() - found_files
    if gone:
        index.remove(sorted(gone))
    now = {file: stored for file, stored in index.files().items() if file in found_files}
    skipped |= {file: stored.note for file, stored in now.items() if not stored.num_passages}
    usable = {file: stored for file, stored in sorted(now.items()) if stored.num_passages}
    if not usable:
        reasons = tuple(f"{file}: {skipped[file]}" for file in sorted(skipped))
        raise CorpusEmpty(folder, SUFFIXES, reasons)
    return IndexReport(
        num_indexed=batch.num_indexed,
        num_unchanged=len(usable) - batch.num_indexed,
        num_removed=sum(known[file].num_passages > 0 for file in gone - skipped.keys()),
        num_ignored=scan.num_ignored,
        num_passages=sum(stored.num_passages for stored in usable.values()),
        num_bytes=sum(stored.size for stored in usable.values()),
        skipped=tuple(SkippedFile(file, skipped[file]) for file in sorted(skipped)),
        warnings=tuple(f"{file}: {stored.note}" for file, stored in usable.items() if stored.note),
    )


class _Batch:
    """Files read but not yet written."""

    def __init__(self, index: CorpusIndex) -> None:
        self.num_indexed = 0
        self._index = index
        self._entries: list[FileEntry] = []
        self._num_bytes = 0

    def add(self, entry: FileEntry) -> None:
        self.num_indexed += bool(entry.passages)
        self._entries.append(entry)
        self._num_bytes += entry.stored.size
        if self._num_bytes >= _BATCH_BYTES or len(self._entries) >= _BATCH_FILES:
            self.flush()

    def flush(self) -> None:
        if self._entries:
            self._index.store(self._entries)
        self._entries = []
        self._num_bytes = 0


def _is_current(stored: StoredFile | None, found: FoundFile) -> bool:
    return stored is not None and (stored.size, stored.mtime_ns) == (found.size, found.mtime_ns)


def _read(folder: Path, file: str, known: StoredFile | None, max_file_bytes: int) -> FileEntry:
    """Read one file; no passages where its bytes are those that the index knows."""
    with (folder / file).open("rb") as stream:
        status = os.fstat(stream.fileno())
        data = stream.read(max_file_bytes + 1)
    if len(data) > max_file_bytes:
        raise OSError(f"it grew over the limit of {max_file_bytes:,} bytes")
    # A file changed this very moment may change once more and still bear the same time.
    settled = status.st_mtime_ns < time.time_ns() - _CLOCK_TICK_NS
    stored = StoredFile(
        size=len(data),
        mtime_ns=status.st_mtime_ns if settled else -1,
        digest=blake3(data).digest(),
        num_passages=0,
        note="",
    )
    if known is not None and known.digest == stored.digest:
        same = replace(stored, num_passages=known.num_passages, note=known.note)
        return FileEntry(file, same, ())
    try:
        reading = read_document(data, file)
    except Unreadable as error:
        return FileEntry(file, replace(stored, note=str(error)), ())
    stored = replace(stored, num_passages=len(reading.passages), note=reading.warning)
    return FileEntry(file, stored, reading.passages)

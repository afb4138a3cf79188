"""Updates an index to the files of its folder; reads only files that have changed."""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from blake3 import blake3

from agents.tools.corpus_index import CorpusIndex, FileEntry, StoredFile
from agents.tools.document_reader import DocumentReader, ReadingLimits
from agents.tools.errors import CorpusEmpty, Unreadable
from agents.tools.folder_scan import FoundFile, SkippedFile, scan_folder
from agents.tools.readers import SUFFIXES

# Limits of a transaction: a kill loses at most one batch, and other processes wait for one at most.
_BATCH_BYTES = 4_000_000
_BATCH_FILES = 500
# Two changes of a file within one tick of the file system's clock have the same time.
_CLOCK_TICK_NS = 20_000_000


@dataclass(frozen=True, slots=True)
class IndexProgress:
    """The progress of the indexing.

    Attributes:
        files_done: files read so far.
        files_total: files to read: the new and changed ones.
        file: the next file to read; "" when all are done.
    """

    files_done: int
    files_total: int
    file: str


OnProgress = Callable[[IndexProgress], None]


@dataclass(frozen=True, slots=True)
class IndexReport:
    """The result of indexing a folder.

    Attributes:
        num_indexed: files read and indexed this time.
        num_unchanged: files with passages that were kept.
        num_removed: files that no longer exist; their passages were removed.
        num_ignored: files that are hidden or have another suffix.
        num_passages: passages in the index now.
        num_bytes: total size of the files with passages.
        skipped: files that could not be indexed, with the reasons, ordered by file.
        warnings: files that were indexed only in part or in a detected encoding, and whether the
            index was rebuilt.
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
    limits: ReadingLimits,
    on_progress: OnProgress | None = None,
) -> IndexReport:
    """Index new and changed files, and remove deleted ones.

    Args:
        index: prepared.
        folder: resolved.
        max_file_bytes: larger files are skipped.
        limits: files that take more to read are skipped.
        on_progress: called before each file and once at the end. An exception from it stops the
            indexing, and the next one continues from there.
    Raises:
        CorpusEmpty: no file in the folder could be indexed.
        IndexDamaged, CorpusIndexUnavailable: see CorpusIndex.
    """
    # Read the index before the folder: a file that another process adds in between must not look
    # like a deleted one.
    known = index.files()
    scan = scan_folder(folder, suffixes=SUFFIXES, max_file_bytes=max_file_bytes)
    skipped = {entry.file: entry.reason for entry in scan.skipped}
    stale = [found for found in scan.found if not _is_current(known.get(found.file), found)]
    batch = _Batch(index)
    with DocumentReader(limits) as reader:
        for num_done, found in enumerate(stale):
            if on_progress:
                on_progress(IndexProgress(num_done, len(stale), found.file))
            try:
                stored = known.get(found.file)
                batch.add(_read(folder, found.file, stored, max_file_bytes, reader))
            except OSError as error:
                skipped[found.file] = f"it cannot be read: {error.strerror or error}"
    batch.flush()
    if on_progress and stale:
        on_progress(IndexProgress(len(stale), len(stale), ""))

    found_files = {found.file for found in scan.found} - skipped.keys()
    deleted = known.keys() - found_files
    if deleted:
        index.remove(sorted(deleted))
    current = {file: stored for file, stored in index.files().items() if file in found_files}
    skipped |= {file: stored.note for file, stored in current.items() if not stored.num_passages}
    usable = {file: stored for file, stored in sorted(current.items()) if stored.num_passages}
    if not usable:
        reasons = tuple(f"{file}: {skipped[file]}" for file in sorted(skipped))
        raise CorpusEmpty(folder, SUFFIXES, reasons)
    return IndexReport(
        num_indexed=batch.num_indexed,
        num_unchanged=len(usable) - batch.num_indexed,
        num_removed=sum(known[file].num_passages > 0 for file in deleted - skipped.keys()),
        num_ignored=scan.num_ignored,
        num_passages=sum(stored.num_passages for stored in usable.values()),
        num_bytes=sum(stored.size for stored in usable.values()),
        skipped=tuple(SkippedFile(file, skipped[file]) for file in sorted(skipped)),
        warnings=tuple(f"{file}: {stored.note}" for file, stored in usable.items() if stored.note),
    )


class _Batch:
    """Files that were read and are not written to the index yet."""

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


def _read(
    folder: Path, file: str, known: StoredFile | None, max_file_bytes: int, reader: DocumentReader
) -> FileEntry:
    """Read one file; its entry has no passages if its bytes are in the index already."""
    with (folder / file).open("rb") as stream:
        status = os.fstat(stream.fileno())
        data = stream.read(max_file_bytes + 1)
    if len(data) > max_file_bytes:
        raise OSError(f"it has grown beyond the limit of {max_file_bytes:,} bytes")
    # A file that has just changed may change again and still have the same time.
    is_trusted = status.st_mtime_ns < time.time_ns() - _CLOCK_TICK_NS
    stored = StoredFile(
        size=len(data),
        mtime_ns=status.st_mtime_ns if is_trusted else -1,
        digest=blake3(data).digest(),
        num_passages=0,
        note="",
    )
    if known is not None and known.digest == stored.digest:
        same = replace(stored, num_passages=known.num_passages, note=known.note)
        return FileEntry(file, same, ())
    try:
        reading = reader.read(data, file)
    except Unreadable as error:
        return FileEntry(file, replace(stored, note=str(error)), ())
    stored = replace(stored, num_passages=len(reading.passages), note=reading.warning)
    return FileEntry(file, stored, reading.passages)

"""The index of one corpus: its files and their passages, in SQLite with full-text search."""

import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agents.tools.index_file import IndexFile, transaction
from agents.tools.near_duplicates import DistinctPassages
from agents.tools.passages import Passage
from agents.tools.terms import index_form

# A passage's rowid contains its file's id, so a file's passages are one range of rowids.
_PASSAGES_PER_FILE = 1 << 32
_SELECT = """SELECT f.file, p.line, p.end_line, coalesce(p.text, p.body),
    coalesce(p.heading, p.title), p.page """
_ONE = f"{_SELECT} FROM passages AS p, files AS f WHERE p.rowid = ? AND f.id = p.rowid >> 32"
_ALL = f"""{_SELECT} FROM files AS f CROSS JOIN passages AS p
    ON p.rowid BETWEEN f.id << 32 AND (f.id << 32) + {_PASSAGES_PER_FILE - 1}
    WHERE f.file = ? ORDER BY p.rowid"""
# bm25() is negative, the best one is the lowest. CROSS JOIN prevents a scan of the files first.
_RANKED = """SELECT p.rowid, p.rowid >> 32, bm25(passages, 1.0, 0.5) AS cost
    FROM passages AS p CROSS JOIN files AS f ON f.id = p.rowid >> 32
    WHERE passages MATCH ? ORDER BY cost, f.file, p.rowid"""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """The index's record of a file.

    Attributes:
        size, mtime_ns: when it was read; mtime_ns is -1 if it cannot be trusted to detect changes.
        digest: BLAKE3 of its bytes.
        num_passages: 0 if the file could not be indexed.
        note: why it could not, or which part could not be read; "" without a problem.
    """

    size: int
    mtime_ns: int
    digest: bytes
    num_passages: int
    note: str


@dataclass(frozen=True, slots=True)
class FileEntry:
    """A file to store, with its passages."""

    file: str
    stored: StoredFile
    passages: tuple[Passage, ...]


class CorpusIndex:
    """The tables of one corpus. Safe to use from several threads and processes.

    Every method opens its own connection (0.2 ms), so that there is nothing to close or to share
    by accident between threads or after a fork, and reads see the last commit.

    Raises, from every method:
        IndexDamaged, CorpusIndexUnavailable: as IndexFile.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.file = IndexFile(path, folder)

    def files(self) -> dict[str, StoredFile]:
        """File -> its record, for all files in the index."""
        with self.file.connection() as db:
            rows = db.execute("SELECT file, size, mtime_ns, digest, num_passages, note FROM files")
            return {file: StoredFile(*columns) for file, *columns in rows}

    def store(self, entries: Iterable[FileEntry]) -> None:
        """Add or replace files in one transaction; for unchanged bytes only update the time.

        Args:
            entries: without passages if the index has the file's bytes already.
        """
        with self.file.connection() as db, transaction(db):
            for entry in entries:
                new = entry.stored
                row = db.execute(
                    "SELECT id, digest FROM files WHERE file = ?", (entry.file,)
                ).fetchone()
                if row is not None and row[1] == new.digest:
                    # Unchanged, or another process has indexed it meanwhile.
                    times = (new.mtime_ns, row[0])
                    db.execute("UPDATE files SET mtime_ns = ? WHERE id = ?", times)
                elif len(entry.passages) == new.num_passages:
                    if row is not None:
                        _delete(db, row[0])
                    _insert(db, entry)
                # Otherwise another process has changed the row meanwhile: the next open reads
                # the file again.

    def remove(self, files: Iterable[str]) -> None:
        """Remove files and their passages."""
        with self.file.connection() as db, transaction(db):
            for file in files:
                row = db.execute("SELECT id FROM files WHERE file = ?", (file,)).fetchone()
                if row is not None:
                    _delete(db, row[0])

    def search(
        self, expression: str, *, limit: int, per_file: int | None, distinct: bool
    ) -> list[Passage]:
        """The best passages for an FTS5 expression, best first; ties by file, then line."""
        with self.file.connection() as db, transaction(db, "BEGIN"):
            best: list[Passage] = []
            num_of_file: dict[int, int] = {}
            kept = DistinctPassages()
            # Rank rowids first, and read the texts of the best ones only.
            query = _RANKED if per_file is not None or distinct else f"{_RANKED} LIMIT {int(limit)}"
            for rowid, file_id, cost in db.execute(query, (expression,)):
                num = num_of_file.get(file_id, 0)
                if num == per_file:
                    continue
                passage = _to_passage(db.execute(_ONE, (rowid,)).fetchone(), -cost)
                if distinct and not kept.add(passage):
                    continue
                num_of_file[file_id] = num + 1
                best.append(passage)
                if len(best) == limit:
                    break
            return best

    def passages(self) -> Iterator[Passage]:
        """All passages, ordered by file and line."""
        for file in sorted(self.files()):
            with self.file.connection() as db:
                rows = db.execute(_ALL, (file,)).fetchall()
            yield from (_to_passage(row, 0.0) for row in rows)


def _delete(db: sqlite3.Connection, file_id: int) -> None:
    first = file_id * _PASSAGES_PER_FILE
    last = first + _PASSAGES_PER_FILE - 1
    db.execute("DELETE FROM passages WHERE rowid BETWEEN ? AND ?", (first, last))
    db.execute("DELETE FROM files WHERE id = ?", (file_id,))


def _insert(db: sqlite3.Connection, entry: FileEntry) -> None:
    stored = entry.stored
    file_id = db.execute(
        "INSERT INTO files (file, size, mtime_ns, digest, num_passages, note)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (
            *(entry.file, stored.size, stored.mtime_ns),
            *(stored.digest, stored.num_passages, stored.note),
        ),
    ).lastrowid
    assert file_id is not None
    db.executemany(
        "INSERT INTO passages (rowid, body, title, text, heading, line, end_line, page)"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
        (
            (file_id * _PASSAGES_PER_FILE + i, *_row(passage))
            for i, passage in enumerate(entry.passages)
        ),
    )


def _row(passage: Passage) -> tuple[str | int | None, ...]:
    body, title = index_form(passage.text), index_form(passage.heading)
    return (
        body,
        title,
        None if body == passage.text else passage.text,
        None if title == passage.heading else passage.heading,
        passage.line,
        passage.end_line,
        passage.page,
    )


def _to_passage(row: tuple[str, int, int, str, str, int | None], score: float) -> Passage:
    file, line, end_line, text, heading, page = row
    return Passage(file, line, end_line, text, heading, score, page)

"""The file of an index: creates and opens it, and replaces it if it is damaged."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from agents.tools.errors import CorpusIndexUnavailable
from store.database.private_files import create_private, make_private

SCHEMA_VERSION = 2
"""Increase it when the tables or the splitting into passages change: indexes are then rebuilt."""

BUSY_TIMEOUT_S = 60.0
"""Seconds to wait for a lock of another process."""

_APPLICATION_ID = 0x6F726368  # "orch": distinguishes these files from those of other programs
_SCHEMA = (
    "CREATE TABLE corpus (folder TEXT NOT NULL)",
    """CREATE TABLE files (
        id INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE, size INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL, digest BLOB NOT NULL, num_passages INTEGER NOT NULL,
        note TEXT NOT NULL)""",
    # text and heading are NULL if the indexed columns have the same text.
    """CREATE VIRTUAL TABLE passages USING fts5(
        body, title, text UNINDEXED, heading UNINDEXED, line UNINDEXED, end_line UNINDEXED,
        page UNINDEXED, tokenize = 'porter unicode61 remove_diacritics 2')""",
)


class IndexDamaged(Exception):
    """The file is damaged or not an index; it is moved away and the index is rebuilt."""


class IndexFile:
    """A SQLite file that several threads and processes may open.

    Raises, from every method:
        IndexDamaged: the file is damaged, or belongs to another program.
        CorpusIndexUnavailable: no permission, no space, or locked for longer than BUSY_TIMEOUT_S.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        # A path that is not valid UTF-8 has lone surrogates, which SQLite cannot store.
        self._folder = str(folder).encode("utf-8", "backslashreplace").decode("utf-8")

    def prepare(self) -> str:
        """Create the file, or empty it if it is for another folder or version.

        Returns:
            a warning if it was emptied, otherwise "".
        """
        with self._named_os_errors():
            create_private(self.path)  # it has the text of the documents
        with self.connection(mode="rwc") as db:
            ready = (_APPLICATION_ID, SCHEMA_VERSION, self._folder)
            if _state(db) == ready:
                make_private(self.path)
                return ""
            with transaction(db):
                application_id, version, folder = state = _state(db)
                if state == ready:
                    return ""  # another process has prepared it meanwhile
                names = _tables(db)
                if names and application_id != _APPLICATION_ID:
                    raise IndexDamaged("it is another program's database")
                for name in names:
                    db.execute(f'DROP TABLE IF EXISTS "{name}"')
                for statement in _SCHEMA:
                    db.execute(statement)
                db.execute("INSERT INTO corpus VALUES (?)", (self._folder,))
                db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        if not names:
            return ""
        old = f"version {version}" if version != SCHEMA_VERSION else f"the folder {folder}"
        return f"the index {self.path} was for {old}: it was rebuilt"

    def replace_damaged(self) -> str:
        """Move a damaged file away and create a new one; returns a warning with its new path.

        The damaged file is kept, because a wrong index path may be that of another file.
        """
        kept = self.path.with_name(self.path.name + ".damaged")
        lock = self.path.with_name(self.path.name + ".lock")
        with self._named_os_errors(), FileLock(lock, timeout=BUSY_TIMEOUT_S):
            try:
                self.prepare()
                with self.connection() as db:
                    if _is_intact(db):
                        return ""  # the file was missing, or another process has replaced it
            except IndexDamaged:
                pass
            self.path.replace(kept)
            # SQLite would apply the old file's journal to the new one.
            self.path.with_name(self.path.name + "-journal").unlink(missing_ok=True)
            self.prepare()
        return f"the index {self.path} was damaged: it was rebuilt, and the old file is {kept}"

    @contextmanager
    def connection(self, mode: str = "rw") -> Iterator[sqlite3.Connection]:
        """Open the file, and close it at the end; converts SQLite's errors."""
        # Readers need write access too: after a kill the next reader rolls the journal back.
        try:
            uri = f"{self.path.absolute().as_uri()}?mode={mode}"
            with closing(
                sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
            ) as db:
                db.execute("PRAGMA synchronous = NORMAL")
                yield db
        except sqlite3.DatabaseError as error:
            # The low byte of an extended code is the primary code.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            damaged = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
            is_missing = code == sqlite3.SQLITE_CANTOPEN and not self.path.exists()
            if is_missing or code in damaged:  # SQLITE_ERROR: a table or column is missing
                raise IndexDamaged(str(error)) from error
            raise CorpusIndexUnavailable(self.path, str(error)) from error

    @contextmanager
    def _named_os_errors(self) -> Iterator[None]:
        """Convert errors of files and locks to CorpusIndexUnavailable."""
        try:
            yield
        except Timeout as error:
            raise CorpusIndexUnavailable(self.path, "another process is rebuilding it") from error
        except OSError as error:
            raise CorpusIndexUnavailable(self.path, str(error)) from error


@contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Commit at the end, roll back on an error. IMMEDIATE waits for another writer at the start:
    a read transaction that becomes a write transaction may fail without waiting."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # The original error says more than an error of the rollback.
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _state(db: sqlite3.Connection) -> tuple[int, int, str]:
    """Application id, schema version and folder; the folder is "" if the table does not exist."""
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    row = None
    if (application_id, version) == (_APPLICATION_ID, SCHEMA_VERSION):
        row = db.execute("SELECT folder FROM corpus").fetchone()
    return application_id, version, row[0] if row else ""


def _tables(db: sqlite3.Connection) -> list[str]:
    # Virtual tables first: dropping one drops the tables with its data.
    return [
        name
        for (name,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            " ORDER BY sql NOT LIKE 'CREATE VIRTUAL%'"
        )
    ]


def _is_intact(db: sqlite3.Connection) -> bool:
    """Whether the file and its full-text index are undamaged; reads the whole file."""
    db.execute("INSERT INTO passages (passages) VALUES ('integrity-check')")
    db.execute("SELECT id, file, size, mtime_ns, digest, num_passages, note FROM files LIMIT 1")
    verdict: str = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    return verdict == "ok"

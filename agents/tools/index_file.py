"""The file of an index: made, opened, and replaced where it is damaged."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from agents.tools.errors import CorpusIndexUnavailable

SCHEMA_VERSION = 1  # raise it when the tables or the cutting of passages change
BUSY_TIMEOUT_S = 60.0

_APPLICATION_ID = 0x6F726368  # "orch": tells our files from another program's
_SCHEMA = (
    "CREATE TABLE corpus (folder TEXT NOT NULL)",
    """CREATE TABLE files (
        id INTEGER PRIMARY KEY, file TEXT NOT NULL UNIQUE, size INTEGER NOT NULL,
        mtime_ns INTEGER NOT NULL, digest BLOB NOT NULL, num_passages INTEGER NOT NULL,
        note TEXT NOT NULL)""",
    # text and heading are NULL where the indexed columns already hold them verbatim.
    """CREATE VIRTUAL TABLE passages USING fts5(
        body, title, text UNINDEXED, heading UNINDEXED, line UNINDEXED, end_line UNINDEXED,
        page UNINDEXED, tokenize = 'porter unicode61 remove_diacritics 2')""",
)


class IndexDamaged(Exception):
    """The index file is no index of ours any more; set it aside and build it anew."""


class IndexFile:
    """A SQLite file that several threads and processes may open.

    Raises, from every method:
        IndexDamaged: the file is broken or foreign.
        CorpusIndexUnavailable: no permission, no room, or locked for more than a minute.
    """

    def __init__(self, path: Path, folder: Path) -> None:
        self.path = path
        # A path that is no valid UTF-8 holds lone surrogates, which SQLite cannot store.
        self._folder = str(folder).encode("utf-8", "backslashreplace").decode("utf-8")

    def prepare(self) -> str:
        """Make the file ready for this folder and version; returns a warning, or ""."""
        with self._unavailable_if_os_fails():
            self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.connection(mode="rwc") as db:
            ready = (_APPLICATION_ID, SCHEMA_VERSION, self._folder)
            if _state(db) == ready:
                return ""
            with transaction(db):
                application_id, version, folder = state = _state(db)
                if state == ready:
                    return ""  # another process was first
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
        return f"the index {self.path} was of {old} and was built anew"

    def replace_damaged(self) -> str:
        """Set a damaged file aside, create a new one; returns a warning that says where it is.

        It is kept, because a wrong index path could name a file that is no cache at all.
        """
        aside = self.path.with_name(self.path.name + ".damaged")
        lock = self.path.with_name(self.path.name + ".lock")
        with self._unavailable_if_os_fails(), FileLock(lock, timeout=BUSY_TIMEOUT_S):
            try:
                self.prepare()
                with self.connection() as db:
                    if _is_sound(db):
                        return ""  # it was removed, or another process has replaced it
            except IndexDamaged:
                pass
            self.path.replace(aside)
            # A journal left behind would be played back into the new file.
            self.path.with_name(self.path.name + "-journal").unlink(missing_ok=True)
            self.prepare()
        return f"the index {self.path} was damaged: it was built anew, and the old is in {aside}"

    @contextmanager
    def connection(self, mode: str = "rw") -> Iterator[sqlite3.Connection]:
        """Open the file, and close it at the end; SQLite's errors become ours."""
        # Reading needs write access too: after a kill the next reader rolls the journal back.
        try:
            uri = f"{self.path.absolute().as_uri()}?mode={mode}"
            with closing(
                sqlite3.connect(uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None)
            ) as db:
                db.execute("PRAGMA synchronous = NORMAL")
                yield db
        except sqlite3.DatabaseError as error:
            # Extended codes carry the primary one in their low byte.
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
            damaged = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
            gone = code == sqlite3.SQLITE_CANTOPEN and not self.path.exists()
            if gone or code in damaged:  # SQLITE_ERROR: a table or column of ours is missing
                raise IndexDamaged(str(error)) from error
            raise CorpusIndexUnavailable(self.path, str(error)) from error

    @contextmanager
    def _unavailable_if_os_fails(self) -> Iterator[None]:
        try:
            yield
        except Timeout as error:
            raise CorpusIndexUnavailable(self.path, "another process is rebuilding it") from error
        except OSError as error:
            raise CorpusIndexUnavailable(self.path, str(error)) from error


@contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """All or nothing. IMMEDIATE waits for another writer now, where waiting is still possible."""
    db.execute(begin)
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # The error that brought us here says more than one of the rollback.
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _state(db: sqlite3.Connection) -> tuple[int, int, str]:
    """Application id, schema version and folder; "" where there is no table to hold it."""
    (application_id,) = db.execute("PRAGMA application_id").fetchone()
    (version,) = db.execute("PRAGMA user_version").fetchone()
    row = None
    if (application_id, version) == (_APPLICATION_ID, SCHEMA_VERSION):
        row = db.execute("SELECT folder FROM corpus").fetchone()
    return application_id, version, row[0] if row else ""


def _tables(db: sqlite3.Connection) -> list[str]:
    # Virtual tables first: dropping one drops the tables that hold its data.
    return [
        name
        for (name,) in db.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            " ORDER BY sql NOT LIKE 'CREATE VIRTUAL%'"
        )
    ]


def _is_sound(db: sqlite3.Connection) -> bool:
    """Whether the file and its full-text index are whole; reads all of it."""
    db.execute("INSERT INTO passages (passages) VALUES ('integrity-check')")
    db.execute("SELECT id, file, size, mtime_ns, digest, num_passages, note FROM files LIMIT 1")
    verdict: str = db.execute("PRAGMA quick_check(1)").fetchone()[0]
    return verdict == "ok"

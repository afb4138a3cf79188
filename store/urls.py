"""Where a store lives: from the URL that a person gives to the one that its driver takes."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from store.errors import StoreUnreachable

WAIT_S = 30.0  # how long to wait for other writers before StoreLocked, if the URL does not say
CONNECT_S = 10  # how long a PostgreSQL server may take to answer

_SQLITE = {"sqlite", "sqlite+pysqlite"}
_POSTGRES = {"postgres", "postgresql", "postgresql+psycopg", "postgresql+psycopg_async"}


def normalised(text: str) -> URL:
    """The URL with the driver that we use, and a SQLite file's path made absolute.

    Raises:
        StoreUnreachable: no URL, an unknown database or driver, or a database without a file.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        # What cannot be parsed cannot be hidden either: a password may stand anywhere in it.
        raise StoreUnreachable("given", "its URL is malformed") from error
    if url.drivername in _POSTGRES:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername not in _SQLITE:
        cause = f"{url.drivername} is neither sqlite nor postgresql (by psycopg)"
        raise StoreUnreachable(shown(url), cause)
    name = url.database
    if not name or name == ":memory:" or name.startswith("file:"):
        # Each connection would get a database of its own, and none would outlive the process.
        raise StoreUnreachable(shown(url), "it names no file")
    return url.set(drivername="sqlite", database=str(Path(name).absolute()))


def is_sqlite(url: URL) -> bool:
    """Whether the store is a file of ours, and so takes one writer at a time."""
    return url.get_backend_name() == "sqlite"


def file_of(url: URL) -> Path:
    """The file of a SQLite store."""
    assert is_sqlite(url)
    assert url.database is not None
    return Path(url.database)


def shown(url: URL) -> str:
    """The URL as a person would give it, without its password, for messages."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def wait_s(url: URL) -> float:
    """Seconds to wait for other writers; a SQLite URL may say so itself: ?timeout=5."""
    given = url.query.get("timeout", "") if is_sqlite(url) else ""
    try:
        return float(given) if isinstance(given, str) and given else WAIT_S
    except ValueError as error:
        raise StoreUnreachable(shown(url), f"timeout={given} is no number of seconds") from error


def connect_args(url: URL) -> dict[str, object]:
    """What the driver is told besides the URL: for how long to wait."""
    if is_sqlite(url):
        return {"timeout": wait_s(url)}
    given = url.query.get("options", "")
    options = given if isinstance(given, str) else " ".join(given)
    return {
        "connect_timeout": CONNECT_S,
        # The default comes first, so that a lock_timeout in the URL wins.
        "options": f"-c lock_timeout={int(WAIT_S)}s {options}".strip(),
    }

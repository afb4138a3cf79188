"""Store URLs: from the URL that a user gives to the one that the driver takes."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError

from store.errors import StoreUnreachable

WAIT_S = 30.0
"""Seconds to wait for other writers before StoreLocked, unless the URL has another timeout."""

CONNECT_S = 10
"""Seconds to wait for a connection to a PostgreSQL server."""

_SQLITE = {"sqlite", "sqlite+pysqlite"}
_POSTGRES = {"postgres", "postgresql", "postgresql+psycopg", "postgresql+psycopg_async"}


def normalised(text: str) -> URL:
    """The URL with the driver that this package uses, and with an absolute path to a SQLite file.

    Raises:
        StoreUnreachable: not a URL, an unknown database or driver, or a database without a file.
    """
    try:
        url = make_url(text)
    except (ArgumentError, ValueError) as error:
        # The text is not shown: a password in it can be hidden only after it is parsed.
        raise StoreUnreachable("given", "its URL is malformed") from error
    if url.drivername in _POSTGRES:
        return url.set(drivername="postgresql+psycopg")
    if url.drivername not in _SQLITE:
        cause = f"{url.drivername} is neither sqlite nor postgresql (by psycopg)"
        raise StoreUnreachable(without_password(url), cause)
    name = url.database
    if not name or name == ":memory:" or name.startswith("file:"):
        # Each connection would have its own database in memory, lost at the end of the process.
        raise StoreUnreachable(without_password(url), "it names no file")
    return url.set(drivername="sqlite", database=str(Path(name).absolute()))


def is_sqlite(url: URL) -> bool:
    """Whether the store is a SQLite file, which has one writer at a time."""
    return url.get_backend_name() == "sqlite"


def file_of(url: URL) -> Path:
    """The file of a SQLite store."""
    assert is_sqlite(url)
    assert url.database is not None
    return Path(url.database)


def without_password(url: URL) -> str:
    """The URL as a user would give it, without its password, for messages."""
    return url.set(drivername=url.get_backend_name()).render_as_string(hide_password=True)


def wait_s(url: URL) -> float:
    """Seconds to wait for other writers: WAIT_S, or a SQLite URL's own, as in ?timeout=5."""
    given = url.query.get("timeout", "") if is_sqlite(url) else ""
    try:
        return float(given) if isinstance(given, str) and given else WAIT_S
    except ValueError as error:
        cause = f"timeout={given} is not a number of seconds"
        raise StoreUnreachable(without_password(url), cause) from error


def connect_args(url: URL) -> dict[str, object]:
    """The driver's arguments besides the URL: timeouts."""
    if is_sqlite(url):
        return {"timeout": wait_s(url)}
    given = url.query.get("options", "")
    options = given if isinstance(given, str) else " ".join(given)
    return {
        "connect_timeout": CONNECT_S,
        # The default comes first, so that a lock_timeout in the URL overrides it.
        "options": f"-c lock_timeout={int(WAIT_S)}s {options}".strip(),
    }

"""Connections to a PostgreSQL server: few for each process, and a wait where there is none left."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import Dialect, Engine, event
from sqlalchemy.engine import URL
from sqlalchemy.exc import DBAPIError
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_random

from store.database.urls import wait_s, without_password
from store.errors import StoreUnreachable

POOL_SIZE = 2
"""Connections of a process, unless the URL has another `pool_size`: one may write while another
reads or renews leases. A server accepts 100 by default, for all processes together."""

_RETRY_S = (0.05, 0.5)
"""Shortest and longest pause between two attempts to connect, in seconds; chosen at random, so that
processes that wait do not all try at once."""


def pool_size(url: URL) -> int:
    """Connections that a process opens at most; raises StoreUnreachable if the URL's is none."""
    given = url.query.get("pool_size", str(POOL_SIZE))
    if not (isinstance(given, str) and given.isdecimal() and int(given) > 0):
        cause = f"pool_size={given} is not a number of connections"
        raise StoreUnreachable(without_password(url), cause)
    return int(given)


def wait_for_connections(engine: Engine, url: URL, *, sleep: Callable[[float], Any]) -> None:
    """Make an engine wait while the server has no connection left, for at most `wait_s(url)`."""

    def connect(dialect: Dialect, _record: Any, arguments: Any, parameters: Any) -> Any:
        attempts = Retrying(
            retry=retry_if_exception(is_out_of_connections),
            stop=stop_after_delay(wait_s(url)),
            wait=wait_random(*_RETRY_S),
            sleep=sleep,
            reraise=True,
        )
        return attempts(dialect.connect, *arguments, **parameters)

    event.listen(engine, "do_connect", connect)


def is_out_of_connections(error: BaseException) -> bool:
    """Whether a server, role or database has no connection left (SQLSTATE 53300).

    psycopg has no SQLSTATE for an error before a connection is established, only the text.
    """
    cause = error.orig if isinstance(error, DBAPIError) else error
    return "too many" in str(cause) or "connection slots" in str(cause)

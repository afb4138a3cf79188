"""Waits for PostgreSQL's notifications that a run was submitted."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.engine import URL

from store.database.urls import CONNECT_S, without_password
from store.errors import StoreUnreachable
from store.queue.conditions import CHANNEL

_ALIVE_S = 30.0  # after this silence the connection is checked, as a lost one says nothing


async def listen(url: URL, woken: Callable[[], None]) -> None:
    """Call `woken` for each submission, and once at the beginning, until cancelled.

    It has a connection of its own, beside those of the store.

    Raises:
        StoreUnreachable: the connection cannot be made, or was lost.
    """
    import psycopg

    plain = url.set(drivername="postgresql").difference_update_query(["pool_size"])
    try:
        connection = await psycopg.AsyncConnection.connect(
            plain.render_as_string(hide_password=False),
            autocommit=True,
            connect_timeout=int(CONNECT_S),
        )
        async with connection:
            await connection.execute(f"LISTEN {CHANNEL}")
            woken()  # for what was submitted before
            while True:
                async for _ in connection.notifies(timeout=_ALIVE_S):
                    woken()
                await connection.execute("SELECT 1")
    except psycopg.Error as error:
        cause = str(error).strip() or type(error).__name__
        raise StoreUnreachable(without_password(url), cause) from error

"""Databases for tests: a SQLite file, or a schema of its own on a PostgreSQL server."""

from __future__ import annotations

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Connection, NullPool, create_engine
from sqlalchemy.engine import make_url

POSTGRES = os.environ.get("ORCHESTRATE_TEST_POSTGRES")
DATABASES = ["sqlite", "postgresql"]


@contextmanager
def fresh_store_url(database: str, folder: Path) -> Iterator[str]:
    """The URL of a store that does not exist yet, on one of DATABASES."""
    if database == "sqlite":
        yield f"sqlite:///{folder / 'store.sqlite'}"
        return
    if not POSTGRES:
        pytest.skip("ORCHESTRATE_TEST_POSTGRES names no PostgreSQL server")
    import psycopg

    schema = f"test_{uuid.uuid4().hex}"
    plain = make_url(POSTGRES).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {schema}")
        yield f"{plain}?options=-csearch_path%3D{schema}&pool_size=3"
        connection.execute(f"DROP SCHEMA {schema} CASCADE")


def blocking(store_url: str) -> str:
    """The URL for SQLAlchemy and Alembic without the store."""
    plain = make_url(store_url).difference_update_query(["pool_size"])
    return plain.render_as_string(hide_password=False).replace("postgresql:", "postgresql+psycopg:")


@contextmanager
def connected(store_url: str) -> Iterator[Connection]:
    """A plain connection that does not use the store."""
    with create_engine(blocking(store_url), poolclass=NullPool).begin() as connection:
        yield connection

"""Statements that several repositories share, and conversions between rows and records."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Insert, Row, RowMapping, exists, inspect, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.dml import ReturningInsert

from store.database.connection import StoreConnection
from store.errors import PayloadMissing, RunNotFound
from store.models import Base, Payload, Run

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    RecordT = TypeVar("RecordT", bound=DataclassInstance)
else:
    RecordT = TypeVar("RecordT")

T = TypeVar("T")

_BATCH = 500  # values in one query


def batches(values: Sequence[T]) -> Iterator[Sequence[T]]:
    """The values in parts that fit in one query."""
    for start in range(0, len(values), _BATCH):
        yield values[start : start + _BATCH]


def columns_of(record: DataclassInstance) -> dict[str, Any]:
    """A record's fields by name: they are columns of its table. Values are not copied."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def plain_json(value: Any) -> Any:
    """The value itself, if it can be written as JSON; SQLite would accept NaN, PostgreSQL not.

    Raises:
        TypeError, ValueError: it has a value that JSON cannot represent.
    """
    json.dumps(value, allow_nan=False)
    return value


def record_of(record_type: type[RecordT], row: RowMapping) -> RecordT:
    """The record of a row; the row's columns are exactly the record's fields."""
    return record_type(**dict(row))


@cache
def _upsert(dialect: str, table: type[Base]) -> Insert:
    """An INSERT that replaces all columns but the key if the row exists."""
    key = inspect(table).primary_key
    others = [column.name for column in table.__table__.columns if column not in key]
    statement = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    replaced = {name: statement.excluded[name] for name in others}
    return statement.on_conflict_do_update(index_elements=list(key), set_=replaced)


@cache
def _insert(dialect: str, table: type[Base]) -> Insert:
    """An INSERT that does nothing if the row exists, so that the transaction can continue."""
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    return postgresql.insert(table).on_conflict_do_nothing()


@cache
def _insert_for_key(dialect: str, table: type[Base]) -> ReturningInsert[Any]:
    """As `_insert`; it returns the key if the row was inserted."""
    return _insert(dialect, table).returning(*inspect(table).primary_key)


async def insert_new(
    connection: StoreConnection, table: type[Base], values: Mapping[str, Any]
) -> Row[Any] | None:
    """Insert a row; returns its key, or None if the row exists already and nothing was written."""
    statement = _insert_for_key(connection.dialect.name, table)
    key: Row[Any] | None = (await connection.execute(statement, dict(values))).one_or_none()
    return key


async def insert_all_new(
    connection: StoreConnection, table: type[Base], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Insert the rows that do not exist, in order; much faster than one statement for each."""
    if rows:
        await connection.execute(_insert(connection.dialect.name, table), rows)


async def insert_referring(
    connection: StoreConnection,
    table: type[Base],
    values: Mapping[str, Any],
    *,
    run_id: str,
    payloads: tuple[str | None, ...] = (),
) -> Row[Any] | None:
    """As `insert_new`, for a row that refers to a run and payloads; a missing one is named.

    On SQLite the references are checked only if the insert fails. PostgreSQL aborts the whole
    transaction at a missing reference, so they are checked before, which costs a query.

    Raises:
        RunNotFound, PayloadMissing: the store does not have the run, or one of the payloads.
    """
    if connection.dialect.name != "sqlite":
        await require(connection, run_id=run_id, payloads=payloads)
        return await insert_new(connection, table, values)
    try:
        return await insert_new(connection, table, values)
    except IntegrityError:
        await require(connection, run_id=run_id, payloads=payloads)
        raise


async def put_row(
    connection: StoreConnection, table: type[Base], values: Mapping[str, Any]
) -> None:
    """Insert a row, or replace the row with the same key."""
    await connection.execute(_upsert(connection.dialect.name, table), dict(values))


async def require(
    connection: StoreConnection, *, run_id: str | None, payloads: tuple[str | None, ...] = ()
) -> None:
    """Check that a run and payloads exist: a violated foreign key does not say what is missing.

    Raises:
        RunNotFound, PayloadMissing: the store does not have the run, or one of the payloads.
    """
    hashes = [payload for payload in payloads if payload is not None]
    checks = [exists().where(Payload.hash == payload) for payload in hashes]
    if run_id is not None:
        checks.append(exists().where(Run.id == run_id))
    if not checks:
        return
    found = (await connection.execute(select(*checks))).one()
    if run_id is not None and not found[-1]:
        raise RunNotFound(run_id)
    for payload, is_stored in zip(hashes, found, strict=False):
        if not is_stored:
            raise PayloadMissing(payload)

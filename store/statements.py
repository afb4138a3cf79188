"""Statements that several repositories share, and the way between rows and records."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Insert, Row, RowMapping, exists, inspect, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import IntegrityError
from sqlalchemy.sql.dml import ReturningInsert

from store.connection import StoreConnection
from store.errors import PayloadMissing, RunNotFound
from store.models import Base, Payload, Run

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    RecordT = TypeVar("RecordT", bound=DataclassInstance)
else:
    RecordT = TypeVar("RecordT")


def columns_of(record: DataclassInstance) -> dict[str, Any]:
    """A record's fields by name, which are its table's columns. Values are not copied."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def plain_json(value: Any) -> Any:
    """The value itself, if every database takes it as JSON; SQLite alone would take NaN.

    Raises:
        TypeError, ValueError: it holds what JSON has no word for.
    """
    json.dumps(value, allow_nan=False)
    return value


def record_of(record_type: type[RecordT], row: RowMapping) -> RecordT:
    """The record of a row that holds exactly its fields."""
    return record_type(**dict(row))


@cache
def _upsert(dialect: str, table: type[Base]) -> Insert:
    """An INSERT that replaces all but the key where the row exists."""
    key = inspect(table).primary_key
    others = [column.name for column in table.__table__.columns if column not in key]
    statement = sqlite.insert(table) if dialect == "sqlite" else postgresql.insert(table)
    replaced = {name: statement.excluded[name] for name in others}
    return statement.on_conflict_do_update(index_elements=list(key), set_=replaced)


@cache
def _insert(dialect: str, table: type[Base]) -> Insert:
    """An INSERT that changes nothing, and so breaks no transaction, where the row exists."""
    if dialect == "sqlite":
        return sqlite.insert(table).on_conflict_do_nothing()
    return postgresql.insert(table).on_conflict_do_nothing()


@cache
def _insert_for_key(dialect: str, table: type[Base]) -> ReturningInsert[Any]:
    """The same; its row is the key, if it was inserted."""
    return _insert(dialect, table).returning(*inspect(table).primary_key)


async def insert_new(
    connection: StoreConnection, table: type[Base], values: Mapping[str, Any]
) -> Row[Any] | None:
    """Insert a row; returns its key, or None, and nothing has changed, if that is taken."""
    statement = _insert_for_key(connection.dialect.name, table)
    key: Row[Any] | None = (await connection.execute(statement, dict(values))).one_or_none()
    return key


async def insert_all_new(
    connection: StoreConnection, table: type[Base], rows: Sequence[Mapping[str, Any]]
) -> None:
    """Insert rows in their order, but for those that exist; at a fraction of the price of each."""
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
    """The same for a row that refers to others, which are looked for where one is missing.

    PostgreSQL gives up the whole transaction at a missing reference: there they are looked for
    before, at the price of a query.

    Raises:
        RunNotFound, PayloadMissing: the store does not hold it.
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
    """Insert a row, or put its values in the place of those that stand under its key."""
    await connection.execute(_upsert(connection.dialect.name, table), dict(values))


async def require(
    connection: StoreConnection, *, run_id: str | None, payloads: tuple[str | None, ...] = ()
) -> None:
    """Check what a row is about to refer to: a foreign key would not say which one is missing.

    Raises:
        RunNotFound, PayloadMissing: the store does not hold it.
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
    for payload, is_there in zip(hashes, found, strict=False):
        if not is_there:
            raise PayloadMissing(payload)

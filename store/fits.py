"""Fits: for each application, the last fit of its pattern library."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select

from store.database.connection import StoreConnection
from store.models import Fit
from store.records import FitRecord
from store.statements import columns_of, plain_json, put_row, record_of

_COLUMNS = select(*Fit.__table__.columns)


class Fits:
    """The fits of one transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def put(self, fit: FitRecord) -> None:
        """Record an application's fit; it replaces the previous one.

        Its kernel is read back as JSON: lists for tuples, and text for every key.

        Raises:
            TypeError, ValueError: its kernel is not plain JSON with finite numbers.
        """
        values = columns_of(fit) | {"kernel": plain_json(dict(fit.kernel))}
        await put_row(self._connection, Fit, values)

    async def get(self, application: str) -> FitRecord | None:
        """The last fit of an application; None before its first."""
        result = await self._connection.execute(_COLUMNS.where(Fit.application == application))
        row = result.mappings().one_or_none()
        return None if row is None else record_of(FitRecord, row)

    async def all(self) -> Sequence[FitRecord]:
        """The last fit of every application that has one, ordered by application."""
        result = await self._connection.execute(_COLUMNS.order_by(Fit.application))
        return [record_of(FitRecord, row) for row in result.mappings()]

"""Encoded pattern graphs of finished runs: what the pattern library is built from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from store.errors import AlreadyRecorded
from store.models import Pattern
from store.records import PatternRecord
from store.statements import columns_of, insert_new, record_of, require

_COLUMNS = select(*Pattern.__table__.columns)


class Patterns:
    """The patterns of one transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def add(self, pattern: PatternRecord) -> int:
        """Store a pattern; returns the id that it was given.

        Raises:
            RunNotFound: its run is not recorded.
            AlreadyRecorded: its run has given a pattern before.
        """
        assert pattern.id is None, "the store gives ids"
        await require(self._connection, run_id=pattern.run_id)
        values = columns_of(pattern)
        del values["id"]
        key = await insert_new(self._connection, Pattern, values)
        if key is None:
            assert pattern.run_id is not None, "only a run's pattern can be there already"
            raise AlreadyRecorded(pattern.run_id, "the pattern")
        new_id: int = key.id
        return new_id

    async def of_application(
        self, application: str, *, limit: int | None = None
    ) -> Sequence[PatternRecord]:
        """The patterns of one application, newest first."""
        result = await self._connection.execute(
            _COLUMNS.where(Pattern.application == application)
            .order_by(Pattern.id.desc())
            .limit(limit)
        )
        return [record_of(PatternRecord, row) for row in result.mappings()]

    async def count_by_application(self) -> Mapping[str, int]:
        """How many patterns each application has, by name."""
        result = await self._connection.execute(
            select(Pattern.application, func.count().label("num_patterns"))
            .group_by(Pattern.application)
            .order_by(Pattern.application)
        )
        return {row.application: row.num_patterns for row in result}

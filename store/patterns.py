"""Encoded pattern graphs of finished runs, from which the pattern library is built.

The library of an application consists of its patterns with a positive weight; its patterns with
weight 0 are its history.

Statements that change patterns lock the rows first, ordered by id, so that two processes cannot
deadlock. On SQLite a write transaction holds the database's lock from its start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, RowMapping, bindparam, delete, func, literal, select, update

from store.database.column_types import FreeText
from store.database.connection import StoreConnection
from store.errors import AlreadyRecorded
from store.models import Pattern
from store.records import PatternRecord
from store.statements import columns_of, insert_new, record_of, require

_COLUMNS = select(*Pattern.__table__.columns)
_IS_PATTERN = Pattern.id == bindparam("pattern_id")
_UPDATE_USES = (
    update(Pattern)
    .where(_IS_PATTERN)
    .values(uses=bindparam("new_uses"), used_at=bindparam("new_used_at"))
)
_UPDATE_WEIGHT = update(Pattern).where(_IS_PATTERN).values(weight=bindparam("new_weight"))
_DELETE = delete(Pattern).where(_IS_PATTERN)

_ADVISORY_CLASS = 0x70617474  # "patt": arbitrary, unlikely to be locked by another program


class Patterns:
    """The patterns of one transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def add(self, pattern: PatternRecord) -> int:
        """Store a pattern; returns its new id, which is greater than all earlier ones.

        Raises:
            RunNotFound: its run is not recorded.
            AlreadyRecorded: its run has a pattern already.
        """
        assert pattern.id is None, "the store assigns ids"
        assert 0 <= pattern.weight < math.inf, "a weight is finite and not negative"
        await require(self._connection, run_id=pattern.run_id)
        await self._lock_application(pattern.application)
        values = columns_of(pattern) | {"used_at": pattern.used_at or pattern.created_at}
        del values["id"]
        key = await insert_new(self._connection, Pattern, values)
        if key is None:
            assert pattern.run_id is not None, "only the run's id is unique"
            raise AlreadyRecorded(pattern.run_id, "the pattern")
        new_id: int = key.id
        return new_id

    async def replace(self, pattern: PatternRecord) -> int:
        """Store the pattern of a run that may have left one before; that one is deleted.

        Returns:
            its new id, so that all processes see the pattern as a new one.
        Raises:
            RunNotFound: its run is not recorded.
        """
        assert pattern.run_id is not None, "a pattern without a run replaces none"
        for former in await self._lock(Pattern.run_id == pattern.run_id):
            await self._connection.execute(_DELETE, {"pattern_id": former["id"]})
        return await self.add(pattern)

    async def get(self, ids: Collection[int]) -> Sequence[PatternRecord]:
        """The patterns with these ids, ordered by id; ids without a pattern are ignored."""
        result = await self._connection.execute(
            _COLUMNS.where(Pattern.id.in_(set(ids))).order_by(Pattern.id)
        )
        return [record_of(PatternRecord, row) for row in result.mappings()]

    async def of_application(
        self, application: str, *, limit: int | None = None, in_library: bool = False
    ) -> Sequence[PatternRecord]:
        """The patterns of one application, newest first.

        Args:
            in_library: only patterns with a positive weight.
        """
        query = _COLUMNS.where(Pattern.application == application)
        if in_library:
            query = query.where(Pattern.weight > 0)
        result = await self._connection.execute(query.order_by(Pattern.id.desc()).limit(limit))
        return [record_of(PatternRecord, row) for row in result.mappings()]

    async def count_by_application(self) -> Mapping[str, int]:
        """Application name -> number of its patterns."""
        result = await self._connection.execute(
            select(Pattern.application, func.count().label("num_patterns"))
            .group_by(Pattern.application)
            .order_by(Pattern.application)
        )
        return {row.application: row.num_patterns for row in result}

    async def newest_id(self, application: str) -> int | None:
        """The greatest id among an application's patterns; None if it has none."""
        newest: int | None = await self._connection.scalar(
            select(func.max(Pattern.id)).where(Pattern.application == application)
        )
        return newest

    async def count_since(self, application: str, pattern_id: int) -> int:
        """The number of an application's patterns with an id greater than `pattern_id`."""
        count: int | None = await self._connection.scalar(
            select(func.count()).where(Pattern.application == application, Pattern.id > pattern_id)
        )
        assert count is not None, "a count is never NULL"
        return count

    async def update_uses(
        self, ids: Collection[int], rule: Callable[[int, float, datetime], float], *, at: datetime
    ) -> None:
        """Update the reuse counts of these patterns; ids without a pattern are ignored.

        Args:
            rule: (pattern id, count, time to which the count was decayed) -> new count, >= 0.
            at: the time of the new count; `used_at` becomes the later of this and its old value.
        """
        changes = []
        for row in await self._lock(Pattern.id.in_(set(ids))):
            uses = rule(row["id"], row["uses"], row["used_at"])
            assert 0 <= uses < math.inf, "a count is finite and not negative"
            used_at = max(row["used_at"], at)
            changes.append({"pattern_id": row["id"], "new_uses": uses, "new_used_at": used_at})
        if changes:
            await self._connection.execute(_UPDATE_USES, changes)

    async def set_library(
        self, application: str, weights: Mapping[int, float], *, up_to: int
    ) -> None:
        """Make these patterns the library; the application's other patterns become history.

        Patterns newer than `up_to` do not change, because the fit that chose the weights did not
        see them. Ids without a pattern, or of another application's, are ignored.

        Args:
            weights: pattern id, <= `up_to` -> number of runs that it represents, > 0.
            up_to: id of the newest pattern that the fit saw.
        """
        assert all(0 < weight < math.inf for weight in weights.values())
        assert all(pattern_id <= up_to for pattern_id in weights)
        was_considered = (Pattern.application == application) & (Pattern.id <= up_to)
        changes = [
            {"pattern_id": row["id"], "new_weight": weights.get(row["id"], 0.0)}
            for row in await self._lock(was_considered)
            if row["weight"] != weights.get(row["id"], 0.0)
        ]
        if changes:
            await self._connection.execute(_UPDATE_WEIGHT, changes)

    async def delete(self, ids: Collection[int]) -> int:
        """Delete patterns of the history; returns how many were deleted.

        Patterns of a library are not deleted; ids without a pattern are ignored.
        """
        is_deletable = Pattern.id.in_(set(ids)) & (Pattern.weight == 0)
        deleted = [{"pattern_id": row["id"]} for row in await self._lock(is_deletable)]
        if deleted:
            await self._connection.execute(_DELETE, deleted)
        return len(deleted)

    async def _lock(self, condition: ColumnElement[bool]) -> Sequence[RowMapping]:
        """Lock the patterns that meet a condition until the transaction ends.

        Returns:
            their ids and the columns that may change, ordered by id.
        """
        result = await self._connection.execute(
            select(Pattern.id, Pattern.weight, Pattern.uses, Pattern.used_at)
            .where(condition)
            .order_by(Pattern.id)
            .with_for_update()
        )
        return result.mappings().all()

    async def _lock_application(self, application: str) -> None:
        """Wait until no other transaction has an uncommitted pattern of this application.

        PostgreSQL assigns ids before the commit. Without this lock, a pattern could become visible
        after one with a greater id, and `up_to` would count it as seen by a fit that did not.
        """
        if self._connection.dialect.name == "postgresql":
            await self._connection.execute(
                select(
                    func.pg_advisory_xact_lock(
                        _ADVISORY_CLASS, func.hashtext(literal(application, FreeText()))
                    )
                )
            )

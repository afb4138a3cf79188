"""Encoded pattern graphs of finished runs: what the pattern library is built from.

An application's library is its patterns of positive weight; those of weight 0 are its history.

Whatever changes patterns locks them first, in the order of their ids, so that no two processes
wait for each other. On SQLite a transaction that writes is alone from its start.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import ColumnElement, RowMapping, bindparam, delete, func, literal, select, update

from store.connection import StoreConnection
from store.errors import AlreadyRecorded
from store.models import FreeText, Pattern
from store.records import PatternRecord
from store.statements import columns_of, insert_new, record_of, require

_COLUMNS = select(*Pattern.__table__.columns)
_THIS = Pattern.id == bindparam("pattern_id")
_NEW_USES = (
    update(Pattern)
    .where(_THIS)
    .values(uses=bindparam("new_uses"), used_at=bindparam("new_used_at"))
)
_NEW_WEIGHT = update(Pattern).where(_THIS).values(weight=bindparam("new_weight"))
_DELETE = delete(Pattern).where(_THIS)

_ADVISORY_CLASS = 0x70617474  # "patt": any number that other programs are unlikely to lock


class Patterns:
    """The patterns of one transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def add(self, pattern: PatternRecord) -> int:
        """Store a pattern; returns the id that it was given, greater than any before.

        Raises:
            RunNotFound: its run is not recorded.
            AlreadyRecorded: its run has given a pattern before.
        """
        assert pattern.id is None, "the store gives ids"
        assert 0 <= pattern.weight < math.inf, "a weight is finite and not negative"
        await require(self._connection, run_id=pattern.run_id)
        await self._take_turns(pattern.application)
        values = columns_of(pattern) | {"used_at": pattern.used_at or pattern.created_at}
        del values["id"]
        key = await insert_new(self._connection, Pattern, values)
        if key is None:
            assert pattern.run_id is not None, "only a run's pattern can be there already"
            raise AlreadyRecorded(pattern.run_id, "the pattern")
        new_id: int = key.id
        return new_id

    async def get(self, ids: Collection[int]) -> Sequence[PatternRecord]:
        """The patterns of these ids, ascending; those that are not there are left out."""
        result = await self._connection.execute(
            _COLUMNS.where(Pattern.id.in_(set(ids))).order_by(Pattern.id)
        )
        return [record_of(PatternRecord, row) for row in result.mappings()]

    async def of_application(
        self, application: str, *, limit: int | None = None, in_library: bool = False
    ) -> Sequence[PatternRecord]:
        """The patterns of one application, newest first; only its library's, if asked."""
        query = _COLUMNS.where(Pattern.application == application)
        if in_library:
            query = query.where(Pattern.weight > 0)
        result = await self._connection.execute(query.order_by(Pattern.id.desc()).limit(limit))
        return [record_of(PatternRecord, row) for row in result.mappings()]

    async def count_by_application(self) -> Mapping[str, int]:
        """How many patterns each application has, by name."""
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
        """How many patterns an application has with a greater id than this."""
        count: int | None = await self._connection.scalar(
            select(func.count()).where(Pattern.application == application, Pattern.id > pattern_id)
        )
        assert count is not None, "a count is never NULL"
        return count

    async def update_uses(
        self, ids: Collection[int], rule: Callable[[int, float, datetime], float], *, at: datetime
    ) -> None:
        """Bring the reuse counts of these patterns to a time; ids that are gone are ignored.

        Args:
            rule: from a pattern's id, its count and the time to which that was decayed, to the
                new count, >= 0.
            at: the time of the new count; a pattern that was used later keeps its own.
        """
        changes = []
        for row in await self._locked(Pattern.id.in_(set(ids))):
            uses = rule(row["id"], row["uses"], row["used_at"])
            assert 0 <= uses < math.inf, "a count is finite and not negative"
            used_at = max(row["used_at"], at)
            changes.append({"pattern_id": row["id"], "new_uses": uses, "new_used_at": used_at})
        if changes:
            await self._connection.execute(_NEW_USES, changes)

    async def set_library(
        self, application: str, weights: Mapping[int, float], *, up_to: int
    ) -> None:
        """Make these patterns the library: all others of the application become history.

        Patterns newer than `up_to` stay as they are, because whoever chose the weights did not
        know of them. Ids that are gone, or another application's, are ignored.

        Args:
            weights: runs that each pattern stands for, > 0, by its id, <= `up_to`.
            up_to: the id of the newest pattern that was considered.
        """
        assert all(0 < weight < math.inf for weight in weights.values())
        assert all(pattern_id <= up_to for pattern_id in weights)
        mine = (Pattern.application == application) & (Pattern.id <= up_to)
        changes = [
            {"pattern_id": row["id"], "new_weight": weights.get(row["id"], 0.0)}
            for row in await self._locked(mine)
            if row["weight"] != weights.get(row["id"], 0.0)
        ]
        if changes:
            await self._connection.execute(_NEW_WEIGHT, changes)

    async def delete(self, ids: Collection[int]) -> int:
        """Delete patterns of the history; returns how many that were.

        What a library holds is not deleted, and ids that are gone are ignored.
        """
        mine = Pattern.id.in_(set(ids)) & (Pattern.weight == 0)
        doomed = [{"pattern_id": row["id"]} for row in await self._locked(mine)]
        if doomed:
            await self._connection.execute(_DELETE, doomed)
        return len(doomed)

    async def _locked(self, condition: ColumnElement[bool]) -> Sequence[RowMapping]:
        """What may change of the patterns that fulfil a condition, ours until we are done."""
        result = await self._connection.execute(
            select(Pattern.id, Pattern.weight, Pattern.uses, Pattern.used_at)
            .where(condition)
            .order_by(Pattern.id)
            .with_for_update()
        )
        return result.mappings().all()

    async def _take_turns(self, application: str) -> None:
        """Wait until nobody else has an uncommitted pattern of this application.

        PostgreSQL gives ids before it commits. Without turns a pattern could come to light after
        a newer one was seen, and `up_to` would take it for one that was considered.
        """
        if self._connection.dialect.name == "postgresql":
            await self._connection.execute(
                select(
                    func.pg_advisory_xact_lock(
                        _ADVISORY_CLASS, func.hashtext(literal(application, FreeText()))
                    )
                )
            )

"""How many rows name each state: counted in the transaction that writes those rows.

The changes of one transaction are collected, and written at its end in the order of the states'
ids: two transactions that change the same counters wait for one another, but never both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    CompoundSelect,
    Select,
    bindparam,
    case,
    func,
    null,
    select,
    text,
    union_all,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import InstrumentedAttribute

from store.database.connection import StoreConnection
from store.errors import StateNotFound
from store.models import Checkpoint, State, StateEdge, Step
from store.state_records import CountDifference, StateRecord
from store.statements import columns_of

STATE_COLUMNS: tuple[tuple[InstrumentedAttribute[str], InstrumentedAttribute[Any]], ...] = (
    (Step.run_id, Step.state_before),
    (Step.run_id, Step.state_after),
    (StateEdge.run_id, StateEdge.before),
    (StateEdge.run_id, StateEdge.after),
    (Checkpoint.run_id, Checkpoint.state),
)
"""(column with the run's id, column that names a state): all such columns."""


def _changed_by(num: ColumnElement[int] | Any, at: ColumnElement[datetime | None] | Any) -> Any:
    """The columns of a state after its counter has changed."""
    return {
        State.uses: State.uses + num,
        State.unused_since: case((State.uses + num == 0, at), else_=null()),
    }


# Built once: to build a statement takes longer than to execute it.
_CHANGE = (
    update(State)
    .where(State.id == bindparam("of_state"))
    .values(
        _changed_by(
            bindparam("num", type_=State.uses.type),
            bindparam("at", type_=State.unused_since.type),
        )
    )
)


class StateUses:
    """The counters of one transaction: `settle` writes what was collected before."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection
        self._new: dict[str, StateRecord] = {}
        self._changes: Counter[str] = Counter()
        self._released_at: datetime | None = None

    def add(self, state: StateRecord) -> None:
        """Store a state that no row names yet, unless it is stored."""
        self._new.setdefault(state.id, state)

    def use(self, *states: str | None) -> None:
        """A row that names these states is written."""
        self._changes.update(state for state in states if state is not None)

    def release(self, *states: str | None, at: datetime) -> None:
        """A row that names these states is deleted, or names them no more, from now on."""
        self._changes.subtract(state for state in states if state is not None)
        self._released_at = at

    async def settle(self) -> None:
        """Write the new states and all counters.

        Raises:
            StateNotFound: a row names a state that is not stored.
        """
        new, self._new = self._new, {}
        changes, self._changes = self._changes, Counter()
        for state in sorted(new.keys() | changes.keys()):
            if state in new:
                await self._insert(new[state])
            if num := changes[state]:
                values = {"of_state": state, "num": num, "at": self._released_at}
                result = await self._connection.execute(_CHANGE, values)
                if num > 0 and not result.rowcount:
                    raise StateNotFound(state)

    async def used_only_by(self, runs: Select[str]) -> Collection[str]:
        """The ids of states that no rows but those of these runs name.

        Args:
            runs: ids of runs.
        """
        await self.settle()
        named = _counted(runs).subquery("named")
        only = select(State.id).join(named, named.c.id == State.id).where(State.uses == named.c.num)
        return list((await self._connection.execute(only)).scalars())

    async def release_all_of(self, runs: Select[str], *, at: datetime) -> None:
        """The rows of these runs are about to be deleted: they name no state from now on.

        Args:
            runs: ids of runs.
        """
        await self.settle()
        released = _counted(runs).subquery("released")
        # Locked in the order of their ids; see above.
        locked = await self._connection.execute(
            select(State.id)
            .where(State.id.in_(select(released.c.id)))
            .order_by(State.id)
            .with_for_update(key_share=True)
        )
        locked.all()  # SQLite cannot drop a table while a statement has unread rows
        changed = _changed_by(-released.c.num, bindparam("at", at, type_=State.unused_since.type))
        await self._connection.execute(
            update(State).where(State.id == released.c.id).values(changed)
        )

    async def recount(
        self, *, fix: bool = False, at: datetime | None = None
    ) -> Sequence[CountDifference]:
        """Count again; returns the states whose counter is wrong, by id.

        Args:
            fix: correct the counters. A state that is not stored cannot be corrected.
            at: to fix: since when a state counts as unused whose counter becomes 0.
        """
        assert at is not None or not fix, "a state that turns out to be unused needs a time"
        await self.settle()
        if fix and self._connection.dialect.name == "postgresql":
            # Other transactions that have changed counters end first, others wait.
            await self._connection.execute(text("LOCK states IN SHARE ROW EXCLUSIVE MODE"))
        counted = _counted().subquery("counted")
        num = func.coalesce(counted.c.num, 0)
        rows = await self._connection.execute(
            select(State.id, State.uses, num.label("num"))
            .join(counted, counted.c.id == State.id, isouter=True)
            .where(State.uses != num)
        )
        lost = await self._connection.execute(
            select(counted.c.id, null().label("uses"), counted.c.num).where(
                counted.c.id.not_in(select(State.id))
            )
        )
        found = [
            CountDifference(row.id, row.uses, row.num) for result in (rows, lost) for row in result
        ]
        if fix:
            for each in found:
                if each.stored is not None:
                    values = {"of_state": each.id, "num": each.counted - each.stored, "at": at}
                    await self._connection.execute(_CHANGE, values)
        return sorted(found, key=lambda each: each.id)

    async def _insert(self, state: StateRecord) -> None:
        """Insert a state; on PostgreSQL keep it from being removed if it is stored already."""
        values = columns_of(state) | {"uses": 0, "unused_since": state.created_at}
        if self._connection.dialect.name == "sqlite":
            await self._connection.execute(sqlite.insert(State).on_conflict_do_nothing(), values)
            return
        locked = {"uses": State.uses}
        statement = postgresql.insert(State).on_conflict_do_update(
            index_elements=[State.id], set_=locked
        )
        await self._connection.execute(statement, values)


def named_by(runs: Select[str] | str | None = None) -> CompoundSelect[Any]:
    """The ids of states that rows name, once for each time.

    Args:
        runs: only rows of these runs, or of the run with this id; None: all.
    """
    names = []
    for run_id, column in STATE_COLUMNS:
        name = select(column.label("id")).where(column.is_not(None))
        if runs is not None:
            name = name.where(run_id == runs if isinstance(runs, str) else run_id.in_(runs))
        names.append(name)
    return union_all(*names)


def _counted(runs: Select[str] | None = None) -> Select[Any]:
    """State id -> how many columns name it."""
    names = named_by(runs).subquery("names")
    return select(names.c.id, func.count().label("num")).group_by(names.c.id)

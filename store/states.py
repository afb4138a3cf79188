"""States of workspaces, the edges between them, and checkpoints."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ColumnElement,
    RowMapping,
    delete,
    exists,
    func,
    select,
    union_all,
    update,
)

from store.database.column_types import FreeText
from store.database.connection import StoreConnection
from store.errors import AlreadyRecorded, StateNotFound
from store.models import Checkpoint, Run, State, StateEdge, Step
from store.state_records import (
    MAX_CHANGED,
    CheckpointRecord,
    CountDifference,
    StateChange,
    StateEdgeRecord,
    StateRecord,
)
from store.state_uses import STATE_COLUMNS, StateUses, named_by
from store.statements import batches, columns_of, insert_referring, plain_json, record_of

_COLUMNS = select(*State.__table__.columns)


class States:
    """The states of one transaction, and what steps did to them.

    A new state, and the counters of how many rows name each, are written when the transaction
    ends, or when it reads states. There it fails with StateNotFound if a row names a state that is
    not stored. On PostgreSQL it holds locks from then on: it should write nothing more.
    """

    def __init__(self, connection: StoreConnection, uses: StateUses) -> None:
        self._connection = connection
        self._uses = uses

    async def add(self, state: StateRecord) -> None:
        """Store a state; one that is stored already is not changed."""
        self._uses.add(state)

    async def record(self, change: StateChange) -> None:
        """Record the states, edges and the checkpoint of a step, of which the outcome is recorded.

        Raises:
            RunNotFound, AlreadyRecorded: as `add_edges` and `add_checkpoint`.
        """
        for state in change.states:
            await self.add(state)
        await self.add_edges(change.edges)
        if change.checkpoint is not None:
            await self.add_checkpoint(change.checkpoint)

    async def add_edges(self, edges: Sequence[StateEdgeRecord]) -> None:
        """Record what steps did.

        Raises:
            RunNotFound: their run is not recorded.
            AlreadyRecorded: a step has an edge with this number already.
        """
        for edge in edges:
            assert len(edge.changed) <= MAX_CHANGED
            values = columns_of(edge) | {
                "changed": plain_json(list(edge.changed)),
                "reads": None if edge.reads is None else plain_json(list(edge.reads)),
            }
            key = await insert_referring(self._connection, StateEdge, values, run_id=edge.run_id)
            if key is None:
                raise AlreadyRecorded(edge.run_id, f"edge {edge.number} of step {edge.path}")
            self._uses.use(edge.before, edge.after)

    async def add_checkpoint(self, checkpoint: CheckpointRecord) -> None:
        """Record a checkpoint.

        Raises:
            RunNotFound: its run is not recorded.
            AlreadyRecorded: its step has a checkpoint already.
        """
        key = await insert_referring(
            self._connection, Checkpoint, columns_of(checkpoint), run_id=checkpoint.run_id
        )
        if key is None:
            raise AlreadyRecorded(checkpoint.run_id, f"the checkpoint of step {checkpoint.path}")
        self._uses.use(checkpoint.state)

    async def get(self, state_id: str) -> StateRecord:
        """The state with this id; raises StateNotFound if it is not stored."""
        found = await self._states(State.id == state_id)
        if not found:
            raise StateNotFound(state_id)
        return found[0]

    async def starting_with(self, prefix: str, *, limit: int) -> Sequence[StateRecord]:
        """The states whose ids begin like this, the oldest first; no more than so many."""
        has_prefix = func.substr(State.id, 1, len(prefix), type_=FreeText) == prefix
        return await self._states(has_prefix, limit=limit)

    async def run_of(self, state_id: str) -> str | None:
        """The id of a run that names a state, the newest of them; None: none does."""
        naming = union_all(
            *(
                select(run_id.label("id")).where(column == state_id)
                for run_id, column in STATE_COLUMNS
            )
        ).subquery()
        query = select(Run.id).where(Run.id.in_(select(naming.c.id)))
        query = query.order_by(Run.started_at.desc(), Run.id.desc()).limit(1)
        return (await self._connection.execute(query)).scalar()

    async def of_run(self, run_id: str) -> Sequence[StateRecord]:
        """The states that rows of a run name, the oldest first."""
        return await self._states(State.id.in_(select(named_by(run_id).subquery().c.id)))

    async def only_of_run(self, run_id: str) -> Collection[str]:
        """The ids of states that rows of a run name, and no others."""
        return await self._uses.used_only_by(select(Run.id).where(Run.id == run_id))

    async def edges_of_run(self, run_id: str) -> Sequence[StateEdgeRecord]:
        """The edges of a run, in the order in which their steps ended."""
        is_of_step = (Step.run_id == StateEdge.run_id) & (Step.path == StateEdge.path)
        result = await self._connection.execute(
            select(*StateEdge.__table__.columns)
            .join(Step, is_of_step, isouter=True)
            .where(StateEdge.run_id == run_id)
            .order_by(
                func.coalesce(Step.finished_s, 0.0),
                func.coalesce(Step.outcome_number, -1),
                StateEdge.path,
                StateEdge.number,
            )
        )
        return [_edge_of(row) for row in result.mappings()]

    async def checkpoints_of_run(self, run_id: str) -> Sequence[CheckpointRecord]:
        """The checkpoints of a run, the first one first."""
        result = await self._connection.execute(
            select(*Checkpoint.__table__.columns)
            .where(Checkpoint.run_id == run_id)
            .order_by(Checkpoint.at_s, Checkpoint.path)
        )
        return [record_of(CheckpointRecord, row) for row in result.mappings()]

    async def unused(self, before: datetime) -> Sequence[StateRecord]:
        """The states that no row names, since before a moment; those unused longest first."""
        await self._uses.settle()
        result = await self._connection.execute(
            _COLUMNS.where(State.uses == 0, State.unused_since < before).order_by(
                State.unused_since, State.id
            )
        )
        return [record_of(StateRecord, row) for row in result.mappings()]

    async def all_ids(self) -> Collection[str]:
        """The ids of all states."""
        await self._uses.settle()
        return list((await self._connection.execute(select(State.id))).scalars())

    async def remove(self, ids: Collection[str]) -> Collection[str]:
        """Delete those of these states that no row names; returns their ids.

        A state that is in use is kept, also if its counter says that it is not.
        """
        await self._uses.settle()
        removed: list[str] = []
        for batch in batches(sorted(ids)):
            is_unused = (State.id.in_(batch)) & (State.uses == 0)
            # Locked in the order of their ids; see store/state_uses.py.
            locked = await self._connection.execute(
                select(State.id).where(is_unused).order_by(State.id).with_for_update()
            )
            locked.all()
            is_named = State.id.in_(select(named_by().subquery().c.id))
            result = await self._connection.execute(
                delete(State).where(is_unused, ~is_named).returning(State.id)
            )
            removed += result.scalars()
        return removed

    async def recount(
        self, fix: bool = False, *, at: datetime | None = None
    ) -> Sequence[CountDifference]:
        """See StateUses.recount."""
        return await self._uses.recount(fix=fix, at=at)

    async def forget(self, run_id: str, paths: Collection[str], *, at: datetime) -> None:
        """Delete the edges and checkpoints of these steps.

        Args:
            at: when the states that they name come out of use, unless others name them.
        """
        for batch in batches(sorted(paths)):
            edges = await self._connection.execute(
                delete(StateEdge)
                .where(StateEdge.run_id == run_id, StateEdge.path.in_(batch))
                .returning(StateEdge.before, StateEdge.after)
            )
            checkpoints = await self._connection.execute(
                delete(Checkpoint)
                .where(Checkpoint.run_id == run_id, Checkpoint.path.in_(batch))
                .returning(Checkpoint.state)
            )
            for row in (*edges, *checkpoints):
                self._uses.release(*row, at=at)

    async def move(self, run_id: str, suffix: str) -> None:
        """Give edges and checkpoints the paths of their steps, which got this suffix."""
        for table in (StateEdge, Checkpoint):
            has_moved = exists().where(Step.run_id == run_id, Step.path == table.path + suffix)
            await self._connection.execute(
                update(table)
                .where(table.run_id == run_id, has_moved)
                .values(path=table.path + suffix)
            )

    async def _states(
        self, *conditions: ColumnElement[bool], limit: int | None = None
    ) -> Sequence[StateRecord]:
        await self._uses.settle()
        result = await self._connection.execute(
            _COLUMNS.where(*conditions).order_by(State.created_at, State.id).limit(limit)
        )
        return [record_of(StateRecord, row) for row in result.mappings()]


def _edge_of(row: RowMapping) -> StateEdgeRecord:
    """The record of a row, with its paths as tuples."""
    reads = row["reads"]
    paths: dict[str, Any] = {
        "changed": tuple(row["changed"]),
        "reads": None if reads is None else tuple(reads),
    }
    return StateEdgeRecord(**dict(row) | paths)

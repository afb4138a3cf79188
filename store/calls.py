"""LLM and tool calls of a run, and the dependencies between them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields

from sqlalchemy import bindparam, func, insert, select, update

from store.database.connection import StoreConnection
from store.errors import AlreadyRecorded, NotStarted
from store.models import Call, Edge, Run
from store.records import CallKind, CallOutcome, CallRecord, EdgeRecord, LengthSample, Status
from store.statements import columns_of, insert_referring, record_of, require

_COLUMNS = select(*Call.__table__.columns)

# Built once: to build a statement takes longer than to execute it.
_FINISH = (
    update(Call)
    .where(
        Call.run_id == bindparam("of_run"),
        Call.node == bindparam("at_node"),
        Call.status == Status.RUNNING,
    )
    .values(
        {
            column.name: func.coalesce(bindparam(column.name, type_=column.type), column)
            for column in Call.__table__.columns
            if column.name in {field.name for field in fields(CallOutcome)}
        }
    )
)


class Calls:
    """The calls of one transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def start(self, call: CallRecord, *, parents: Collection[int] = ()) -> None:
        """Record the start of a call.

        Args:
            parents: nodes of the calls that had to end before this one.
        Raises:
            RunNotFound: its run is not recorded.
            NotStarted: a parent is not recorded.
            AlreadyRecorded: the run has a call with this node already.
            PayloadMissing: its prompt is not stored.
        """
        assert call.node not in parents, "a call cannot depend on itself"
        if parents:
            await self._require_calls(call.run_id, set(parents))
        key = await insert_referring(
            self._connection,
            Call,
            columns_of(call),
            run_id=call.run_id,
            payloads=(call.prompt_payload, call.output_payload),
        )
        if key is None:
            raise AlreadyRecorded(call.run_id, f"call {call.node}")
        edges = [
            {"run_id": call.run_id, "parent": parent, "child": call.node}
            for parent in sorted(set(parents))
        ]
        if edges:
            await self._connection.execute(insert(Edge), edges)

    async def add_all(self, calls: Sequence[CallRecord], edges: Sequence[EdgeRecord]) -> None:
        """Record calls of a new run as they are, and the dependencies between them.

        Their runs and payloads must be recorded.
        """
        if calls:
            await self._connection.execute(insert(Call), [columns_of(call) for call in calls])
        if edges:
            await self._connection.execute(insert(Edge), [columns_of(edge) for edge in edges])

    async def finish(self, run_id: str, node: int, outcome: CallOutcome) -> None:
        """Record the outcome of a call; a recorded outcome is final.

        Raises:
            NotStarted: the start of the call is not recorded.
            AlreadyRecorded: its outcome is recorded already.
            PayloadMissing: its output is not stored.
        """
        assert outcome.status is not Status.RUNNING
        if outcome.output_payload is not None:
            await require(self._connection, run_id=None, payloads=(outcome.output_payload,))
        is_call = {"of_run": run_id, "at_node": node}
        result = await self._connection.execute(_FINISH, is_call | columns_of(outcome))
        if not result.rowcount:
            await self._require_calls(run_id, {node})
            raise AlreadyRecorded(run_id, f"the end of call {node}")

    async def interrupt(self, run_id: str) -> None:
        """Mark the running calls of a run as cancelled, because their process died."""
        await self._connection.execute(
            update(Call)
            .where(Call.run_id == run_id, Call.status == Status.RUNNING)
            .values(status=Status.CANCELLED, error_type="Interrupted")
        )

    async def of_run(self, run_id: str) -> Sequence[CallRecord]:
        """The calls of a run, ordered by node; empty if the run does not exist."""
        result = await self._connection.execute(
            _COLUMNS.where(Call.run_id == run_id).order_by(Call.node)
        )
        return [record_of(CallRecord, row) for row in result.mappings()]

    async def edges_of_run(self, run_id: str) -> Sequence[EdgeRecord]:
        """The dependencies between the calls of a run, ordered by parent, then child."""
        result = await self._connection.execute(
            select(Edge.run_id, Edge.parent, Edge.child)
            .where(Edge.run_id == run_id)
            .order_by(Edge.parent, Edge.child)
        )
        return [record_of(EdgeRecord, row) for row in result.mappings()]

    async def length_samples(self, application: str, *, limit: int) -> Sequence[LengthSample]:
        """Training samples for the length predictor: a flow's newest LLM calls, oldest first.

        Only completed calls that have features and a number of output tokens count. Calls are
        ordered by the start of their run, then by their own end.
        """
        result = await self._connection.execute(
            select(
                Call.run_id,
                Call.identity,
                Call.features,
                Call.output_tokens,
                Call.length_bound,
                Call.started_s,
                Call.finished_s,
                Run.started_at.label("run_started_at"),
            )
            .join(Run, Run.id == Call.run_id)
            .where(
                Run.flow == application,
                Call.kind == CallKind.LLM,
                Call.status == Status.COMPLETED,
                Call.features.is_not(None),
                Call.output_tokens.is_not(None),
            )
            .order_by(
                Run.started_at.desc(), Run.id.desc(), Call.finished_s.desc(), Call.node.desc()
            )
            .limit(limit)
        )
        return [record_of(LengthSample, row) for row in result.mappings()][::-1]

    async def _require_calls(self, run_id: str, nodes: set[int]) -> None:
        """Raise NotStarted for the first of these nodes that is not recorded."""
        if not nodes:
            return
        result = await self._connection.execute(
            select(Call.node).where(Call.run_id == run_id, Call.node.in_(nodes))
        )
        missing = nodes - set(result.scalars())
        if missing:
            raise NotStarted(run_id, f"call {min(missing)}")

"""Runs: the head of everything that a flow did."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from sqlalchemy import func, select, update

from store.connection import StoreConnection
from store.errors import (
    AlreadyRecorded,
    InvalidAttributes,
    RunAmbiguous,
    RunChanged,
    RunExists,
    RunNotFound,
)
from store.models import FreeText, Run
from store.records import RunOutcome, RunRecord, Status
from store.statements import columns_of, insert_new, record_of, require

_COLUMNS = select(*Run.__table__.columns)
_NEWEST_FIRST = (Run.started_at.desc(), Run.id.desc())
_KEPT_ON_RESUME = {
    "attributes",
    "deadline_s",
    "entry",
    "flow",
    "id",
    "input_payload",
    "slo_user",
    "started_at",
}
"""Columns that a run keeps when it is resumed; all others are those of the new attempt."""

_NAMED_CANDIDATES = 5  # enough for a person to choose from


class Runs:
    """The runs of one transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def add(self, run: RunRecord) -> None:
        """Record a new run.

        Raises:
            RunExists: a run with this id is recorded already.
            PayloadMissing: its payload is not stored.
            InvalidAttributes: they cannot be written as JSON.
        """
        _require_json(run)
        payloads = (run.input_payload, run.result_payload)
        await require(self._connection, run_id=None, payloads=payloads)
        values = columns_of(run) | {"attributes": dict(run.attributes)}
        if await insert_new(self._connection, Run, values) is None:
            raise RunExists(run.id)

    async def finish(self, run_id: str, outcome: RunOutcome, *, attempts: int = 1) -> None:
        """Record how a run ended; only its first end counts.

        Args:
            attempts: how often it was begun, as far as the caller knows.
        Raises:
            RunNotFound: no such run.
            RunChanged: somebody has resumed it since.
            AlreadyRecorded: it has ended before.
            PayloadMissing: its result is not stored.
        """
        assert outcome.status is not Status.RUNNING
        payloads = (outcome.result_payload,)
        await require(self._connection, run_id=run_id, payloads=payloads)
        result = await self._connection.execute(
            update(Run)
            .where(Run.id == run_id, Run.status == Status.RUNNING, Run.attempts == attempts)
            .values(**columns_of(outcome))
        )
        if result.rowcount:
            return
        if (await self.get(run_id)).attempts != attempts:
            raise RunChanged(run_id)
        raise AlreadyRecorded(run_id, "the end")

    async def resume(self, former: RunRecord, record: RunRecord) -> None:
        """Record that a run that has not ended well is at work again, by another process.

        Raises:
            RunChanged: another one was faster; nothing has changed.
        """
        values = columns_of(record)
        result = await self._connection.execute(
            update(Run)
            .where(
                Run.id == former.id,
                Run.status == former.status,
                Run.attempts == former.attempts,
            )
            .values(**{name: values[name] for name in values.keys() - _KEPT_ON_RESUME})
        )
        if not result.rowcount:
            raise RunChanged(former.id)

    async def lease(self, attempts: Mapping[str, int], until: datetime) -> Collection[str]:
        """Record that runs are at work until then at least; those that have ended are ignored.

        Args:
            attempts: of each run, how often it was begun, as far as the caller knows.
        Returns:
            those of which that is so: the others were resumed by somebody else, or removed.
        """
        result = await self._connection.execute(
            select(Run.id, Run.attempts).where(Run.id.in_(list(attempts)))
        )
        ours = [row.id for row in result if row.attempts == attempts[row.id]]
        for run_id in ours:
            await self._connection.execute(
                update(Run)
                .where(
                    Run.id == run_id,
                    Run.status == Status.RUNNING,
                    Run.attempts == attempts[run_id],
                )
                .values(leased_until=until)
            )
        return ours

    async def get(self, run_id: str) -> RunRecord:
        """The run of this very id; RunNotFound if there is none."""
        result = await self._connection.execute(_COLUMNS.where(Run.id == run_id))
        row = result.mappings().one_or_none()
        if row is None:
            raise RunNotFound(run_id)
        return record_of(RunRecord, row)

    async def find(self, prefix: str) -> RunRecord:
        """The run of this id, or the only one whose id begins like this.

        Raises:
            RunNotFound: none does.
            RunAmbiguous: several do; the error names some of them.
        """
        begins = func.substr(Run.id, 1, len(prefix), type_=FreeText) == prefix
        exact_first = (Run.id == prefix).desc()
        result = await self._connection.execute(
            _COLUMNS.where(begins).order_by(exact_first, *_NEWEST_FIRST).limit(_NAMED_CANDIDATES)
        )
        found = [record_of(RunRecord, row) for row in result.mappings()]
        if not found:
            raise RunNotFound(prefix)
        if len(found) > 1 and found[0].id != prefix:
            raise RunAmbiguous(prefix, [run.id for run in found])
        return found[0]

    async def latest(self) -> RunRecord | None:
        """The run that started last; None in an empty store."""
        newest = await self.newest(limit=1)
        return newest[0] if newest else None

    async def newest(
        self, *, limit: int | None = None, status: Status | None = None
    ) -> Sequence[RunRecord]:
        """Runs by their start, newest first; those of one status, if given."""
        query = _COLUMNS.order_by(*_NEWEST_FIRST).limit(limit)
        if status is not None:
            query = query.where(Run.status == status)
        result = await self._connection.execute(query)
        return [record_of(RunRecord, row) for row in result.mappings()]


def _require_json(run: RunRecord) -> None:
    """Refuse what the drivers would refuse in ways of their own, or store and never read."""
    try:
        json.dumps(dict(run.attributes), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidAttributes(run.id, str(error)) from error

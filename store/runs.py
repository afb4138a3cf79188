"""Runs of flows: their starts, outcomes, attempts and leases."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from datetime import datetime

from sqlalchemy import ColumnElement, bindparam, func, select, update

from store.database.column_types import FreeText
from store.database.connection import InlineConnection, StoreConnection
from store.errors import (
    AlreadyRecorded,
    InvalidAttributes,
    RunAmbiguous,
    RunChanged,
    RunExists,
    RunNotFound,
)
from store.models import Run
from store.records import RunOutcome, RunRecord, Status
from store.statements import columns_of, insert_new, record_of, require

_COLUMNS = select(*Run.__table__.columns)
_ATTEMPTS = select(Run.attempts).where(Run.id == bindparam("run_id")).with_for_update(read=True)
_FINISH = (
    update(Run)
    .where(
        Run.id == bindparam("of_run"),
        Run.status == Status.RUNNING,
        Run.attempts == bindparam("at_attempt"),
    )
    .values({field.name: bindparam(field.name) for field in fields(RunOutcome)})
)
_NEWEST_FIRST = (Run.started_at.desc(), Run.id.desc())
_KEPT_ON_RESUME = {
    "attributes",
    "code_version",
    "due_at",
    "entry",
    "failed_attempts",
    "flow",
    "id",
    "input_payload",
    "max_attempts",
    "queue",
    "rank",
    "retry_s",
    "slo_user",
    "started_at",
}
"""Columns that a run keeps when it is resumed; the new attempt replaces all others."""

_MAX_CANDIDATES = 5  # ids that RunAmbiguous lists: enough for a person to choose from


class Runs:
    """The runs of one transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def add(self, run: RunRecord) -> None:
        """Record a new run.

        Raises:
            RunExists: the store already has a run with this id.
            PayloadMissing: its input or result is not stored.
            InvalidAttributes: its attributes cannot be written as JSON.
        """
        _require_json(run)
        payloads = (run.input_payload, run.result_payload)
        await require(self._connection, run_id=None, payloads=payloads)
        values = columns_of(run) | {"attributes": dict(run.attributes)}
        if await insert_new(self._connection, Run, values) is None:
            raise RunExists(run.id)

    async def finish(self, run_id: str, outcome: RunOutcome, *, attempts: int = 1) -> None:
        """Record the outcome of a run; a recorded outcome is final.

        Args:
            attempts: the caller's attempt, as in RunRecord.
        Raises:
            RunNotFound: the run is not recorded.
            RunChanged: another process has resumed it since.
            AlreadyRecorded: its outcome is recorded already.
            PayloadMissing: its result is not stored.
        """
        assert outcome.status is not Status.RUNNING
        if outcome.result_payload is not None:
            payloads = (outcome.result_payload,)
            await require(self._connection, run_id=run_id, payloads=payloads)
        is_attempt = {"of_run": run_id, "at_attempt": attempts}
        result = await self._connection.execute(_FINISH, is_attempt | columns_of(outcome))
        if result.rowcount:
            return
        if (await self.get(run_id)).attempts != attempts:
            raise RunChanged(run_id)
        raise AlreadyRecorded(run_id, "the end")

    async def resume(self, previous: RunRecord, record: RunRecord) -> None:
        """Record a new attempt of a run; all but _KEPT_ON_RESUME is taken from `record`.

        Args:
            previous: the run as it was read.
        Raises:
            RunChanged: the run has changed since it was read; nothing was written.
        """
        values = columns_of(record)
        result = await self._connection.execute(
            update(Run)
            .where(
                Run.id == previous.id,
                Run.status == previous.status,
                Run.attempts == previous.attempts,
            )
            .values(**{name: values[name] for name in values.keys() - _KEPT_ON_RESUME})
        )
        if not result.rowcount:
            raise RunChanged(previous.id)

    async def require_attempt(self, run_id: str, attempts: int) -> None:
        """Make sure that a run is still at this attempt, until the transaction ends.

        A process that resumes the run waits for this transaction, and then sees what it wrote.

        Raises:
            RunChanged: another process has resumed the run.
        """
        if isinstance(self._connection, InlineConnection):  # a tenth of the time of `scalar`
            found = self._connection.driver_scalar("SELECT attempts FROM runs WHERE id = ?", run_id)
        else:
            found = await self._connection.scalar(_ATTEMPTS, {"run_id": run_id})
        if found != attempts:
            raise RunChanged(run_id)

    async def lease(self, attempts: Mapping[str, int], until: datetime) -> Collection[str]:
        """Lease runs until a moment; runs that have ended are not changed.

        Args:
            attempts: run id -> the caller's attempt, as in RunRecord.
        Returns:
            ids of the runs that still are at that attempt; others were resumed by another
            process, or removed.
        """
        result = await self._connection.execute(
            select(Run.id, Run.attempts).where(Run.id.in_(list(attempts)))
        )
        current = [row.id for row in result if row.attempts == attempts[row.id]]
        for run_id in current:
            await self._connection.execute(
                update(Run)
                .where(
                    Run.id == run_id,
                    Run.status == Status.RUNNING,
                    Run.attempts == attempts[run_id],
                )
                .values(leased_until=until)
            )
        return current

    async def request_cancel(self, run_id: str, at: datetime) -> bool:
        """Ask the process that executes a run to cancel it; returns whether the run goes on."""
        result = await self._connection.execute(
            update(Run)
            .where(Run.id == run_id, Run.status == Status.RUNNING)
            .values(cancel_requested_at=func.coalesce(Run.cancel_requested_at, at))
        )
        return bool(result.rowcount)

    async def clock_stopped(self, run_id: str, stopped_s: float) -> None:
        """Record how long a run's clock was stopped, in total."""
        await self._connection.execute(
            update(Run).where(Run.id == run_id).values(clock_stopped_s=stopped_s)
        )

    async def to_cancel(self, run_ids: Collection[str]) -> Collection[str]:
        """Those of the runs whose processes are asked to cancel them."""
        result = await self._connection.execute(
            select(Run.id).where(Run.id.in_(run_ids), Run.cancel_requested_at.is_not(None))
        )
        return [row.id for row in result]

    async def get(self, run_id: str) -> RunRecord:
        """The run with exactly this id; raises RunNotFound if there is none."""
        result = await self._connection.execute(_COLUMNS.where(Run.id == run_id))
        row = result.mappings().one_or_none()
        if row is None:
            raise RunNotFound(run_id)
        return record_of(RunRecord, row)

    async def find(self, prefix: str) -> RunRecord:
        """The run with this id, or else the only run with this prefix of its id.

        Raises:
            RunNotFound: no id has this prefix.
            RunAmbiguous: several have; the error names the newest ones.
        """
        has_prefix = func.substr(Run.id, 1, len(prefix), type_=FreeText) == prefix
        exact_first = (Run.id == prefix).desc()
        result = await self._connection.execute(
            _COLUMNS.where(has_prefix).order_by(exact_first, *_NEWEST_FIRST).limit(_MAX_CANDIDATES)
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
        self,
        *,
        limit: int | None = None,
        status: Status | None = None,
        flow: str | None = None,
        user: str | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> Sequence[RunRecord]:
        """Runs ordered by their start, newest first; only those with all that is given."""
        query = _COLUMNS.order_by(*_NEWEST_FIRST).limit(limit)
        for column, wanted in ((Run.status, status), (Run.flow, flow), (Run.slo_user, user)):
            if wanted is not None:
                query = query.where(column == wanted)
        for name, text in (tags or {}).items():
            query = query.where(_has_tag(self._connection.dialect.name, name, text))
        result = await self._connection.execute(query)
        return [record_of(RunRecord, row) for row in result.mappings()]


def _has_tag(dialect: str, name: str, text: str) -> ColumnElement[bool]:
    """Whether a run has a tag. The name is a parameter: in a JSON path it would need quoting."""
    if dialect == "postgresql":
        is_equal: ColumnElement[bool] = Run.attributes["tags"][name].as_string() == text
        return is_equal
    tags = func.json_each(Run.attributes, "$.tags").table_valued("key", "value")
    return select(tags.c.key).where(tags.c.key == name, tags.c.value == text).exists()


def _require_json(run: RunRecord) -> None:
    """Refuse attributes that are not JSON: drivers would raise other errors, or accept NaN."""
    try:
        json.dumps(dict(run.attributes), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise InvalidAttributes(run.id, str(error)) from error

"""The journal: which steps of a run began, and how they ended."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from store.errors import AlreadyRecorded, NotStarted
from store.models import Step
from store.records import Status, StepOutcome, StepRecord
from store.statements import columns_of, insert_new, record_of, require

_COLUMNS = select(*Step.__table__.columns)


class Journal:
    """The steps of one transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def start(self, step: StepRecord) -> None:
        """Record that a step begins.

        Raises:
            RunNotFound: its run is not recorded.
            AlreadyRecorded: a step of this path began before.
        """
        await require(self._connection, run_id=step.run_id)
        if await insert_new(self._connection, Step, columns_of(step)) is None:
            raise AlreadyRecorded(step.run_id, f"step {step.path}")

    async def finish(self, run_id: str, path: str, outcome: StepOutcome) -> None:
        """Record how a step ended; only its first end counts.

        Raises:
            NotStarted: no such step began.
            AlreadyRecorded: it has ended before.
        """
        assert outcome.status is not Status.RUNNING
        this = (Step.run_id == run_id, Step.path == path)
        result = await self._connection.execute(
            update(Step).where(*this, Step.status == Status.RUNNING).values(**columns_of(outcome))
        )
        if result.rowcount:
            return
        began = (await self._connection.execute(select(Step.path).where(*this))).first()
        if began is None:
            raise NotStarted(run_id, f"step {path}")
        raise AlreadyRecorded(run_id, f"the end of step {path}")

    async def of_run(self, run_id: str) -> Sequence[StepRecord]:
        """The steps of a run by their start; none if there is no such run."""
        result = await self._connection.execute(
            _COLUMNS.where(Step.run_id == run_id).order_by(Step.started_s, Step.path)
        )
        return [record_of(StepRecord, row) for row in result.mappings()]

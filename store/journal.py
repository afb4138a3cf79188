"""The journal: which steps of a run began, how they ended, and what came of them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from uuid import uuid4

from sqlalchemy import bindparam, delete, or_, select, update

from store.connection import StoreConnection
from store.errors import AlreadyRecorded, NotStarted
from store.models import Run, Step
from store.records import Effects, Status, StepOutcome, StepRecord
from store.statements import columns_of, insert_referring, record_of

_COLUMNS = select(*Step.__table__.columns)
_THIS = (Step.run_id == bindparam("of_run"), Step.path == bindparam("at_path"))


class Journal:
    """The steps of one transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def start(self, step: StepRecord) -> None:
        """Record that a step begins, or how one went that took no time.

        Raises:
            RunNotFound: its run is not recorded.
            AlreadyRecorded: a step of this path began before.
        """
        key = await insert_referring(
            self._connection,
            Step,
            columns_of(step),
            run_id=step.run_id,
            payloads=(step.result_payload,),
        )
        if key is None:
            raise AlreadyRecorded(step.run_id, f"step {step.path}")

    async def start_again(self, step: StepRecord, *, unless: Status | None = None) -> bool:
        """Record that a step begins that began before: nothing of its former end is left.

        Args:
            unless: a step that has this status by now is left as it is.
        Returns:
            whether it began.
        Raises:
            NotStarted: it never began.
        """
        this = [Step.run_id == step.run_id, Step.path == step.path]
        if unless is not None:
            this.append(Step.status != unless)
        result = await self._connection.execute(
            update(Step).where(*this).values(columns_of(step) | {"attempts": Step.attempts + 1})
        )
        if result.rowcount:
            return True
        await self.get(step.run_id, step.path)
        return False

    async def forget(self, run_id: str, paths: Collection[str]) -> None:
        """Remove steps that a flow does not come by any more; external effects whose end is not
        known are kept beside them, under a path of their own."""
        if paths:
            mark = f"[gone:{uuid4().hex[:8]}]"
            unknown = or_(Step.status == Status.RUNNING, Step.status == Status.CANCELLED)
            aside = update(Step).where(*_THIS, Step.effects == Effects.EXTERNAL, unknown)
            moved = aside.values(path=Step.path + mark)
            await self._connection.execute(moved, _named(run_id, paths))
            await self._connection.execute(delete(Step).where(*_THIS), _named(run_id, paths))

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

    async def ended_run(self, run_id: str, paths: Collection[str]) -> None:
        """Record that these steps' errors are what their run ended with."""
        if paths:
            marked = update(Step).where(*_THIS, Step.status == Status.FAILED).values(ended_run=True)
            await self._connection.execute(marked, _named(run_id, paths))

    async def get(self, run_id: str, path: str) -> StepRecord:
        """One step; NotStarted if no such step began."""
        result = await self._connection.execute(
            _COLUMNS.where(Step.run_id == run_id, Step.path == path)
        )
        row = result.mappings().one_or_none()
        if row is None:
            raise NotStarted(run_id, f"step {path}")
        return record_of(StepRecord, row)

    async def reusable(self, key: bytes, since: datetime) -> StepRecord | None:
        """The result that was recorded last under a key, of a run that began since then."""
        result = await self._connection.execute(
            _COLUMNS.join(Run, Run.id == Step.run_id)
            .where(Step.reuse_key == key, Step.status == Status.COMPLETED, Run.started_at >= since)
            .order_by(Run.started_at.desc())
            .limit(1)
        )
        row = result.mappings().one_or_none()
        return None if row is None else record_of(StepRecord, row)

    async def of_run(self, run_id: str) -> Sequence[StepRecord]:
        """The steps of a run by their start; none if there is no such run."""
        result = await self._connection.execute(
            _COLUMNS.where(Step.run_id == run_id).order_by(Step.started_s, Step.path)
        )
        return [record_of(StepRecord, row) for row in result.mappings()]


def _named(run_id: str, paths: Collection[str]) -> list[dict[str, str]]:
    return [{"of_run": run_id, "at_path": path} for path in paths]

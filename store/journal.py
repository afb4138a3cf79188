"""The journal: the starts, outcomes and results of a run's steps."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import fields
from datetime import datetime
from uuid import uuid4

from sqlalchemy import bindparam, delete, insert, or_, select, update

from store.database.connection import StoreConnection
from store.errors import AlreadyRecorded, NotStarted
from store.models import Run, Step
from store.records import GONE, Effects, Status, StepKind, StepOutcome, StepRecord
from store.state_uses import StateUses
from store.statements import batches, columns_of, insert_referring, record_of
from store.states import States

_COLUMNS = select(*Step.__table__.columns)
_IS_STEP = (Step.run_id == bindparam("of_run"), Step.path == bindparam("at_path"))

# Built once: to build a statement takes longer than to execute it.
_FINISH = (
    update(Step)
    .where(*_IS_STEP, Step.status == Status.RUNNING)
    .values({field.name: bindparam(field.name) for field in fields(StepOutcome)})
)


class Journal:
    """The steps of one transaction."""

    def __init__(self, connection: StoreConnection, states: States, uses: StateUses) -> None:
        self._connection = connection
        self._states = states
        self._uses = uses

    async def start(self, step: StepRecord) -> None:
        """Record the start of a step; of one that takes no time, the outcome as well.

        Raises:
            RunNotFound: its run is not recorded.
            AlreadyRecorded: the run has a step with this path already.
            PayloadMissing: its result is not stored.
            StateNotFound: at the end of the transaction: it names a state that is not stored.
        """
        assert step.state_after is None or step.status is not Status.RUNNING
        key = await insert_referring(
            self._connection,
            Step,
            columns_of(step),
            run_id=step.run_id,
            payloads=(step.result_payload,),
        )
        if key is None:
            raise AlreadyRecorded(step.run_id, f"step {step.path}")
        self._uses.use(step.state_before, step.state_after)

    async def add_all(self, steps: Sequence[StepRecord]) -> None:
        """Record steps of a new run as they are; their runs and payloads must be recorded."""
        if steps:
            await self._connection.execute(insert(Step), [columns_of(step) for step in steps])
        for step in steps:
            self._uses.use(step.state_before, step.state_after)

    async def start_again(
        self, step: StepRecord, *, at: datetime, unless: Status | None = None
    ) -> bool:
        """Record another attempt of a step; it replaces the outcome of the previous one.

        What the previous attempt did to its workspace is forgotten too: it is done again, from the
        state before.

        Args:
            at: the time now.
            unless: do nothing if the step has this status by now.
        Returns:
            whether the attempt was recorded.
        Raises:
            NotStarted: the step has no recorded start.
        """
        conditions = [Step.run_id == step.run_id, Step.path == step.path]
        if unless is not None:
            conditions.append(Step.status != unless)
        previous = await self._connection.execute(
            select(Step.state_before, Step.state_after).where(*conditions).with_for_update()
        )
        row = previous.one_or_none()
        if row is not None:
            await self._connection.execute(
                update(Step)
                .where(*conditions)
                .values(columns_of(step) | {"attempts": Step.attempts + 1})
            )
            self._uses.release(*row, at=at)
            await self._states.forget(step.run_id, [step.path], at=at)
            self._uses.use(step.state_before, step.state_after)
            return True
        await self.get(step.run_id, step.path)
        return False

    async def forget(self, run_id: str, paths: Collection[str], *, at: datetime) -> None:
        """Delete steps that a changed flow no longer executes, and what they did to workspaces.

        External effects with an unknown outcome are not deleted, because they may have happened:
        they get a new path, so that another step can have theirs.

        Args:
            at: the time now.
        """
        if paths:
            suffix = f"[{GONE}{uuid4().hex[:8]}]"
            is_unknown = or_(Step.status == Status.RUNNING, Step.status == Status.CANCELLED)
            effects = update(Step).where(*_IS_STEP, Step.effects == Effects.EXTERNAL, is_unknown)
            rename = effects.values(path=Step.path + suffix)
            await self._connection.execute(rename, _parameters(run_id, paths))
            await self._states.move(run_id, suffix)
            await self._states.forget(run_id, paths, at=at)
            for batch in batches(sorted(paths)):
                deleted = await self._connection.execute(
                    delete(Step)
                    .where(Step.run_id == run_id, Step.path.in_(batch))
                    .returning(Step.state_before, Step.state_after)
                )
                for row in deleted:
                    self._uses.release(*row, at=at)

    async def finish(self, run_id: str, path: str, outcome: StepOutcome) -> None:
        """Record the outcome of a step; a recorded outcome is final.

        Raises:
            NotStarted: the start of the step is not recorded.
            AlreadyRecorded: its outcome is recorded already.
            StateNotFound: at the end of the transaction: its state is not stored.
        """
        assert outcome.status is not Status.RUNNING
        is_step = {"of_run": run_id, "at_path": path}
        result = await self._connection.execute(_FINISH, is_step | columns_of(outcome))
        if result.rowcount:
            self._uses.use(outcome.state_after)
            return
        row = (await self._connection.execute(select(Step.path).where(*_IS_STEP), is_step)).first()
        if row is None:
            raise NotStarted(run_id, f"step {path}")
        raise AlreadyRecorded(run_id, f"the end of step {path}")

    async def number_outcome(self, run_id: str, path: str, number: int, *, read_s: float) -> None:
        """Give an answer its place in the order in which the run's outcomes came.

        Args:
            read_s: when the flow read it, in seconds since the run's start: the step's end.
        """
        is_step = (Step.run_id == run_id, Step.path == path)
        await self._connection.execute(
            update(Step).where(*is_step).values(outcome_number=number, finished_s=read_s)
        )

    async def answer(self, run_id: str, path: str, result: bytes) -> bool:
        """Give a question its answer, or another answer, unless the flow has read one.

        Returns:
            whether that was recorded; False: the flow has read an answer already.
        Raises:
            NotStarted: the question is not recorded.
        """
        answered = await self._connection.execute(
            update(Step)
            .where(
                Step.run_id == run_id,
                Step.path == path,
                Step.kind == StepKind.INPUT,
                Step.outcome_number.is_(None),
            )
            .values(
                status=Status.COMPLETED,
                finished_s=Step.started_s,
                error_type=None,
                error_message=None,
                result=result,
                result_payload=None,
            )
        )
        if answered.rowcount:
            return True
        await self.get(run_id, path)
        return False

    async def questions_of(self, run_ids: Collection[str]) -> Sequence[StepRecord]:
        """The questions of runs, those of each run ordered by start, then path."""
        result = await self._connection.execute(
            _COLUMNS.where(Step.run_id.in_(run_ids), Step.kind == StepKind.INPUT).order_by(
                Step.run_id, Step.started_s, Step.path
            )
        )
        return [record_of(StepRecord, row) for row in result.mappings()]

    async def ended_run(self, run_id: str, paths: Collection[str]) -> None:
        """Mark failed steps as those that ended their run; other steps are ignored."""
        if paths:
            failed = update(Step).where(*_IS_STEP, Step.status == Status.FAILED)
            await self._connection.execute(
                failed.values(ended_run=True), _parameters(run_id, paths)
            )

    async def get(self, run_id: str, path: str) -> StepRecord:
        """One step; raises NotStarted if it is not recorded."""
        result = await self._connection.execute(
            _COLUMNS.where(Step.run_id == run_id, Step.path == path)
        )
        row = result.mappings().one_or_none()
        if row is None:
            raise NotStarted(run_id, f"step {path}")
        return record_of(StepRecord, row)

    async def reusable(self, key: bytes, since: datetime) -> StepRecord | None:
        """The completed step with this reuse key, of the latest run; None if there is none.

        Args:
            since: runs that started earlier are ignored.
        """
        result = await self._connection.execute(
            _COLUMNS.join(Run, Run.id == Step.run_id)
            .where(Step.reuse_key == key, Step.status == Status.COMPLETED, Run.started_at >= since)
            .order_by(Run.started_at.desc())
            .limit(1)
        )
        row = result.mappings().one_or_none()
        return None if row is None else record_of(StepRecord, row)

    async def of_run(self, run_id: str) -> Sequence[StepRecord]:
        """The steps of a run, ordered by start, then path; empty if the run does not exist."""
        result = await self._connection.execute(
            _COLUMNS.where(Step.run_id == run_id).order_by(Step.started_s, Step.path)
        )
        return [record_of(StepRecord, row) for row in result.mappings()]


def _parameters(run_id: str, paths: Collection[str]) -> list[dict[str, str]]:
    """The parameters of `_IS_STEP`, for each path."""
    return [{"of_run": run_id, "at_path": path} for path in paths]

"""Stages: the deadline that each stage of a run was given, and the past runs that decided it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from sqlalchemy import RowMapping, select
from sqlalchemy.ext.asyncio import AsyncConnection

from store.errors import AlreadyRecorded
from store.models import Stage
from store.records import MatchRecord, StageRecord
from store.statements import columns_of, insert_new, plain_json, require

_COLUMNS = select(*Stage.__table__.columns)


class Stages:
    """The stages of one transaction."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def start(self, stage: StageRecord) -> None:
        """Record that a stage begins, under which deadline.

        Raises:
            RunNotFound: its run is not recorded.
            AlreadyRecorded: this stage of the run began before.
            ValueError: a match's weight is not finite.
        """
        await require(self._connection, run_id=stage.run_id)
        values = columns_of(stage) | {
            "matches": plain_json([asdict(match) for match in stage.matches])
        }
        if await insert_new(self._connection, Stage, values) is None:
            raise AlreadyRecorded(stage.run_id, f"stage {stage.stage}")

    async def of_run(self, run_id: str) -> Sequence[StageRecord]:
        """The stages of a run in their order; none if there is no such run."""
        result = await self._connection.execute(
            _COLUMNS.where(Stage.run_id == run_id).order_by(Stage.stage)
        )
        return [_stage_of(row) for row in result.mappings()]


def _stage_of(row: RowMapping) -> StageRecord:
    """The record of a row, its matches as a tuple."""
    matches = tuple(MatchRecord(**match) for match in row["matches"])
    return StageRecord(**dict(row) | {"matches": matches})

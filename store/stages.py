"""Stages: the sub-deadline of each stage of a run, and the past runs that it was derived from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from sqlalchemy import RowMapping, insert, select

from store.database.connection import StoreConnection
from store.errors import AlreadyRecorded
from store.models import Stage
from store.records import MatchRecord, StageRecord
from store.statements import columns_of, insert_referring, plain_json, put_row

_COLUMNS = select(*Stage.__table__.columns)


class Stages:
    """The stages of one transaction."""

    def __init__(self, connection: StoreConnection) -> None:
        self._connection = connection

    async def start(self, stage: StageRecord) -> None:
        """Record the start of a stage and its sub-deadline.

        Raises:
            RunNotFound: its run is not recorded.
            AlreadyRecorded: the start of this stage is recorded already.
            ValueError: a match's weight is not finite.
        """
        key = await insert_referring(
            self._connection, Stage, _values_of(stage), run_id=stage.run_id
        )
        if key is None:
            raise AlreadyRecorded(stage.run_id, f"stage {stage.stage}")

    async def add_all(self, stages: Sequence[StageRecord]) -> None:
        """Record stages of a new run, which must be recorded, as they are."""
        if stages:
            await self._connection.execute(insert(Stage), [_values_of(each) for each in stages])

    async def start_again(self, stage: StageRecord) -> None:
        """Record the start of a stage of a resumed run; replaces an earlier record.

        Raises:
            ValueError: a match's weight is not finite.
        """
        await put_row(self._connection, Stage, _values_of(stage))

    async def of_run(self, run_id: str) -> Sequence[StageRecord]:
        """The stages of a run, in their order; empty if the run does not exist."""
        result = await self._connection.execute(
            _COLUMNS.where(Stage.run_id == run_id).order_by(Stage.stage)
        )
        return [_stage_of(row) for row in result.mappings()]


def _values_of(stage: StageRecord) -> dict[str, Any]:
    matches = plain_json([asdict(match) for match in stage.matches])
    return columns_of(stage) | {"matches": matches}


def _stage_of(row: RowMapping) -> StageRecord:
    """The record of a row, with `matches` as a tuple of records."""
    matches = tuple(MatchRecord(**match) for match in row["matches"])
    return StageRecord(**dict(row) | {"matches": matches})

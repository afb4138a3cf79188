"""Records are frozen and have the columns of their tables."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, fields
from typing import Any

import pytest

from store import models, records
from tests.unit.store.store_samples import a_run

PAIRS = [
    (records.RunRecord, models.Run),
    (records.StepRecord, models.Step),
    (records.CallRecord, models.Call),
    (records.EdgeRecord, models.Edge),
    (records.PatternRecord, models.Pattern),
    (records.FitRecord, models.Fit),
    (records.StageRecord, models.Stage),
]
OUTCOMES = [
    (records.RunOutcome, models.Run),
    (records.StepOutcome, models.Step),
    (records.CallOutcome, models.Call),
    (records.PayloadRef, models.Payload),
]


def columns(table: type[models.Base]) -> set[str]:
    return {column.name for column in table.__table__.columns}


@pytest.mark.parametrize(("record", "table"), PAIRS)
def test_a_record_has_exactly_its_tables_columns(record: Any, table: type[models.Base]) -> None:
    assert {field.name for field in fields(record)} == columns(table)


@pytest.mark.parametrize(("record", "table"), OUTCOMES)
def test_an_outcome_has_only_columns_of_its_table(record: Any, table: type[models.Base]) -> None:
    assert {field.name for field in fields(record)} <= columns(table)


def test_a_record_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        a_run().flow = "other"  # type: ignore[misc]

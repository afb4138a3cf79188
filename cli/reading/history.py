"""The records of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from store.records import CallRecord, EdgeRecord, RunRecord, StageRecord, StepRecord


@dataclass(frozen=True, slots=True)
class History:
    """A run and its records.

    Attributes:
        status: the status to show: the recorded one, or `orphaned`.
    """

    run: RunRecord
    status: str
    calls: Sequence[CallRecord] = ()
    steps: Sequence[StepRecord] = ()
    edges: Sequence[EdgeRecord] = ()
    stages: Sequence[StageRecord] = ()

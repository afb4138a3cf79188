"""All that a store holds of one run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from store.records import CallRecord, EdgeRecord, RunRecord, StageRecord, StepRecord


@dataclass(frozen=True, slots=True)
class History:
    """Everything that the store holds of one run; `status` is the one to show."""

    run: RunRecord
    status: str
    calls: Sequence[CallRecord] = ()
    steps: Sequence[StepRecord] = ()
    edges: Sequence[EdgeRecord] = ()
    stages: Sequence[StageRecord] = ()

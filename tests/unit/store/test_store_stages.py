"""Stages: each has one start, with the basis of its sub-deadline."""

from __future__ import annotations

import pytest

from store.errors import AlreadyRecorded, RunNotFound
from store.records import MatchRecord
from store.session import Store
from tests.unit.store.store_samples import a_run, a_stage


async def test_a_stage_is_read_as_it_was_recorded(store: Store) -> None:
    matches = (MatchRecord(3, "run-0", 0.75), MatchRecord(1, None, 0.25))
    learned = a_stage(
        1, source="matched", share=0.4, spread=0.125, num_candidates=12, matches=matches
    )
    plain = a_stage(0, sub_deadline_s=None)
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        for stage in (learned, plain):
            await tx.stages.start(stage)
    async with store.reading() as tx:
        assert list(await tx.stages.of_run("run-1")) == [plain, learned]
        assert list(await tx.stages.of_run("unknown")) == []


async def test_a_second_start_of_a_stage_is_refused(store: Store) -> None:
    async with store.transaction() as tx:
        for run_id in ("run-1", "run-2"):
            await tx.runs.add(a_run(run_id))
            await tx.stages.start(a_stage(run_id=run_id, source="first"))
        with pytest.raises(AlreadyRecorded, match="stage 0"):
            await tx.stages.start(a_stage(source="second"))
        assert [stage.source for stage in await tx.stages.of_run("run-1")] == ["first"]


async def test_a_match_with_a_weight_that_is_not_finite_is_refused(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        with pytest.raises(ValueError, match="JSON"):
            await tx.stages.start(a_stage(matches=[MatchRecord(1, None, float("nan"))]))
        assert list(await tx.stages.of_run("run-1")) == []


async def test_a_stage_of_an_unrecorded_run_is_refused(store: Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(RunNotFound):
            await tx.stages.start(a_stage(run_id="unknown"))

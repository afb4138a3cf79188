"""Patterns: opaque documents, one a run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from store.errors import AlreadyRecorded, RunNotFound
from store.session import Store
from tests.unit.store.store_samples import a_pattern, a_run


async def test_patterns_come_back_newest_first(store: Store) -> None:
    given = [a_pattern(weight=0.5**age, codec_version=age) for age in range(4)]
    async with store.transaction() as tx:
        ids = [await tx.patterns.add(pattern) for pattern in given]
        await tx.patterns.add(a_pattern(application="coding"))
    newest_first = [replace(p, id=i) for p, i in zip(given, ids, strict=True)][::-1]
    async with store.reading() as tx:
        assert list(await tx.patterns.of_application("research")) == newest_first
        assert list(await tx.patterns.of_application("research", limit=2)) == newest_first[:2]
        assert list(await tx.patterns.of_application("nothing")) == []
        assert await tx.patterns.count_by_application() == {"coding": 1, "research": 4}


async def test_a_run_gives_one_pattern(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.patterns.add(a_pattern(run_id="run-1"))
        with pytest.raises(AlreadyRecorded):
            await tx.patterns.add(a_pattern(run_id="run-1"))
        assert await tx.patterns.count_by_application() == {"research": 1}


async def test_a_pattern_belongs_to_a_recorded_run_or_to_none(store: Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(RunNotFound):
            await tx.patterns.add(a_pattern(run_id="nobody"))
        await tx.patterns.add(a_pattern(run_id=None))
        await tx.patterns.add(a_pattern(run_id=None))

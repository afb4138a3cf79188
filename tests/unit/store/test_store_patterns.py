"""Patterns: opaque documents, one per run, in the order in which they were recorded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from store.errors import AlreadyRecorded, RunNotFound
from store.session import Store
from tests.unit.store.store_samples import NOON, a_pattern, a_run


async def test_patterns_are_read_newest_first(store: Store) -> None:
    given = [a_pattern(weight=0.5**age, codec_version=age, used_at=NOON) for age in range(4)]
    async with store.transaction() as tx:
        ids = [await tx.patterns.add(pattern) for pattern in given]
        await tx.patterns.add(a_pattern(application="coding"))
    newest_first = [replace(p, id=i) for p, i in zip(given, ids, strict=True)][::-1]
    async with store.reading() as tx:
        assert list(await tx.patterns.of_application("research")) == newest_first
        assert list(await tx.patterns.of_application("research", limit=2)) == newest_first[:2]
        assert list(await tx.patterns.of_application("nothing")) == []
        assert await tx.patterns.count_by_application() == {"coding": 1, "research": 4}


async def test_patterns_are_read_by_id_and_unknown_ids_are_ignored(store: Store) -> None:
    given = [a_pattern(application=name, used_at=NOON) for name in ("research", "coding", "other")]
    async with store.transaction() as tx:
        ids = [await tx.patterns.add(pattern) for pattern in given]
    first, _, third = [replace(p, id=i) for p, i in zip(given, ids, strict=True)]
    async with store.reading() as tx:
        assert list(await tx.patterns.get([ids[2], 999, ids[0], ids[2]])) == [first, third]
        assert list(await tx.patterns.get([])) == []


async def test_the_last_use_of_a_new_pattern_is_its_creation_unless_it_is_given(
    store: Store,
) -> None:
    later = NOON + timedelta(hours=1)
    async with store.transaction() as tx:
        plain = await tx.patterns.add(a_pattern())
        used = await tx.patterns.add(a_pattern(uses=2.5, used_at=later))
        patterns = await tx.patterns.get([plain, used])
    assert [(pattern.uses, pattern.used_at) for pattern in patterns] == [
        (0.0, NOON),
        (2.5, later),
    ]


async def test_newer_patterns_of_an_application_have_greater_ids(store: Store) -> None:
    async with store.transaction() as tx:
        assert await tx.patterns.newest_id("research") is None
        assert await tx.patterns.count_since("research", 0) == 0
        ids = [await tx.patterns.add(a_pattern(weight=weight)) for weight in (1.0, 0.0, 3.0)]
        await tx.patterns.add(a_pattern(application="coding"))
        assert await tx.patterns.newest_id("research") == ids[-1]
        counts = [await tx.patterns.count_since("research", id_) for id_ in (0, *ids)]
        assert counts == [3, 2, 1, 0]


async def test_the_id_of_a_deleted_pattern_is_never_reused(store: Store) -> None:
    async with store.transaction() as tx:
        deleted = await tx.patterns.add(a_pattern(weight=0.0))
        assert await tx.patterns.delete([deleted]) == 1
    async with store.transaction() as tx:
        assert await tx.patterns.add(a_pattern()) > deleted


async def test_the_pattern_of_a_run_that_ended_again_replaces_its_former_one(store: Store) -> None:
    """With a new id, and nothing of the former one is kept; those of other runs stay."""
    async with store.transaction() as tx:
        for run_id in ("run-1", "run-2"):
            await tx.runs.add(a_run(run_id))
            await tx.patterns.replace(a_pattern(run_id=run_id, weight=4.0, is_cut_off=True))
    async with store.transaction() as tx:
        former = await tx.patterns.of_application("research")
        new_id = await tx.patterns.replace(a_pattern(run_id="run-1"))
        assert new_id > max(pattern.id or 0 for pattern in former)
    async with store.reading() as tx:
        found = await tx.patterns.of_application("research")
    assert [(each.run_id, each.weight, each.is_cut_off) for each in found] == [
        *(("run-1", 1.0, False), ("run-2", 4.0, True)),
    ]


async def test_no_pattern_becomes_visible_before_an_older_one_of_its_application(
    store: Store,
) -> None:
    """Of two concurrent transactions the second is not visible before the first."""

    async def add() -> int:
        async with store.transaction() as tx:
            return await tx.patterns.add(a_pattern())

    async with store.transaction() as tx:
        first = await tx.patterns.add(a_pattern())
        second = asyncio.create_task(add())
        await asyncio.sleep(0.2)
        async with store.reading() as reading:
            assert await reading.patterns.newest_id("research") is None
    assert await second > first


async def test_a_second_pattern_of_a_run_is_refused(store: Store) -> None:
    async with store.transaction() as tx:
        await tx.runs.add(a_run())
        await tx.patterns.add(a_pattern(run_id="run-1"))
        with pytest.raises(AlreadyRecorded):
            await tx.patterns.add(a_pattern(run_id="run-1"))
        assert await tx.patterns.count_by_application() == {"research": 1}


async def test_a_pattern_has_a_recorded_run_or_none(store: Store) -> None:
    async with store.transaction() as tx:
        with pytest.raises(RunNotFound):
            await tx.patterns.add(a_pattern(run_id="unknown"))
        await tx.patterns.add(a_pattern(run_id=None))
        await tx.patterns.add(a_pattern(run_id=None))


async def test_an_application_name_with_characters_that_databases_refuse_is_found(
    store: Store,
) -> None:
    async with store.transaction() as tx:
        new_id = await tx.patterns.add(a_pattern(application="nul \x00"))
        assert await tx.patterns.newest_id("nul \x00") == new_id

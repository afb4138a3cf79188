"""Patterns: opaque documents, one a run, in the order in which they were recorded."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import timedelta

import pytest

from store.errors import AlreadyRecorded, RunNotFound
from store.session import Store
from tests.unit.store.store_samples import NOON, a_pattern, a_run


async def test_patterns_come_back_newest_first(store: Store) -> None:
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


async def test_patterns_are_got_by_id_and_what_is_not_there_is_left_out(store: Store) -> None:
    given = [a_pattern(application=name, used_at=NOON) for name in ("research", "coding", "other")]
    async with store.transaction() as tx:
        ids = [await tx.patterns.add(pattern) for pattern in given]
    first, _, third = [replace(p, id=i) for p, i in zip(given, ids, strict=True)]
    async with store.reading() as tx:
        assert list(await tx.patterns.get([ids[2], 999, ids[0], ids[2]])) == [first, third]
        assert list(await tx.patterns.get([])) == []


async def test_a_new_pattern_was_last_used_when_it_was_made_unless_it_says_otherwise(
    store: Store,
) -> None:
    later = NOON + timedelta(hours=1)
    async with store.transaction() as tx:
        plain = await tx.patterns.add(a_pattern())
        used = await tx.patterns.add(a_pattern(uses=2.5, used_at=later))
        found = await tx.patterns.get([plain, used])
    assert [(pattern.uses, pattern.used_at) for pattern in found] == [(0.0, NOON), (2.5, later)]


async def test_ids_tell_which_patterns_of_an_application_are_new(store: Store) -> None:
    async with store.transaction() as tx:
        assert await tx.patterns.newest_id("research") is None
        assert await tx.patterns.count_since("research", 0) == 0
        ids = [await tx.patterns.add(a_pattern(weight=weight)) for weight in (1.0, 0.0, 3.0)]
        await tx.patterns.add(a_pattern(application="coding"))
        assert await tx.patterns.newest_id("research") == ids[-1]
        counts = [await tx.patterns.count_since("research", id_) for id_ in (0, *ids)]
        assert counts == [3, 2, 1, 0]


async def test_the_id_of_a_forgotten_pattern_is_never_given_again(store: Store) -> None:
    async with store.transaction() as tx:
        forgotten = await tx.patterns.add(a_pattern(weight=0.0))
        assert await tx.patterns.delete([forgotten]) == 1
    async with store.transaction() as tx:
        assert await tx.patterns.add(a_pattern()) > forgotten


async def test_no_pattern_comes_to_light_after_a_newer_one_of_its_application(
    store: Store,
) -> None:
    """Two at once: the second is not there before the first is."""

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


async def test_an_application_may_have_a_name_that_databases_cannot_hold(store: Store) -> None:
    async with store.transaction() as tx:
        new_id = await tx.patterns.add(a_pattern(application="nul \x00"))
        assert await tx.patterns.newest_id("nul \x00") == new_id

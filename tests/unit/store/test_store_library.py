"""The pattern library: its contents, reuse counts and deletion of patterns."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta

import pytest

from store.session import Store, open_store
from tests.unit.store.store_samples import NOON, a_pattern


async def add_patterns(store: Store, *weights: float, application: str = "research") -> list[int]:
    """Add patterns with these weights; returns their ids."""
    async with store.transaction() as tx:
        return [
            await tx.patterns.add(a_pattern(application=application, weight=weight))
            for weight in weights
        ]


async def weights_of(store: Store, application: str = "research") -> Mapping[int | None, float]:
    async with store.reading() as tx:
        return {p.id: p.weight for p in await tx.patterns.of_application(application)}


def one_more(_id: int, uses: float, _used_at: datetime) -> float:
    return uses + 1


async def test_the_library_consists_of_the_patterns_with_a_positive_weight(store: Store) -> None:
    history, small, _, large = await add_patterns(store, 0.0, 0.25, 0.0, 8.0)
    async with store.reading() as tx:
        library = await tx.patterns.of_application("research", in_library=True)
        assert [(pattern.id, pattern.weight) for pattern in library] == [(large, 8), (small, 0.25)]
        newest = await tx.patterns.of_application("research", in_library=True, limit=1)
        assert [pattern.id for pattern in newest] == [large]
        assert history in {p.id for p in await tx.patterns.of_application("research")}


async def test_a_new_library_replaces_the_previous_one(store: Store) -> None:
    ids = await add_patterns(store, 1.0, 1.0, 4.0, 0.0, 0.0)
    others = await add_patterns(store, 1.0, application="coding")
    async with store.transaction() as tx:
        new = {ids[0]: 1.0, ids[2]: 3.0, ids[3]: 2.5}
        await tx.patterns.set_library("research", new, up_to=ids[-1])
    assert await weights_of(store) == dict(zip(ids, (1.0, 0.0, 3.0, 2.5, 0.0), strict=True))
    assert await weights_of(store, "coding") == {others[0]: 1.0}


async def test_a_new_library_does_not_change_patterns_that_its_fit_did_not_see(
    store: Store,
) -> None:
    considered = await add_patterns(store, 1.0, 1.0)
    newer = await add_patterns(store, 1.0, 0.0, 2.0)
    async with store.transaction() as tx:
        await tx.patterns.set_library("research", {considered[0]: 2.0}, up_to=considered[-1])
    expected = dict(zip([*considered, *newer], (2.0, 0.0, 1.0, 0.0, 2.0), strict=True))
    assert await weights_of(store) == expected


async def test_a_library_may_be_empty(store: Store) -> None:
    ids = await add_patterns(store, 1.0, 2.0)
    async with store.transaction() as tx:
        await tx.patterns.set_library("research", {}, up_to=ids[-1])
        await tx.patterns.set_library("nothing", {}, up_to=0)
        assert await tx.patterns.of_application("research", in_library=True) == []


async def test_a_library_takes_only_existing_patterns_of_its_application(
    store: Store,
) -> None:
    [own] = await add_patterns(store, 1.0)
    [other] = await add_patterns(store, 1.0, application="coding")
    [deleted] = await add_patterns(store, 0.0)
    async with store.transaction() as tx:
        await tx.patterns.delete([deleted])
        weights = {own: 2.0, other: 5.0, deleted: 3.0}
        await tx.patterns.set_library("research", weights, up_to=deleted)
    assert await weights_of(store) == {own: 2.0}
    assert await weights_of(store, "coding") == {other: 1.0}


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
async def test_a_library_refuses_a_weight_that_is_not_positive_and_finite(
    store: Store, weight: float
) -> None:
    [id_] = await add_patterns(store, 1.0)
    with pytest.raises(AssertionError):
        async with store.transaction() as tx:
            await tx.patterns.set_library("research", {id_: weight}, up_to=id_)
    assert await weights_of(store) == {id_: 1.0}


async def test_a_library_that_was_not_committed_does_not_replace_the_previous_one(
    store: Store,
) -> None:
    ids = await add_patterns(store, 1.0, 0.0)

    async def fit_and_fail() -> None:
        async with store.transaction() as tx:
            await tx.patterns.set_library("research", {ids[1]: 2.0}, up_to=ids[-1])
            raise RuntimeError

    with pytest.raises(RuntimeError):
        await fit_and_fail()
    assert await weights_of(store) == dict(zip(ids, (1.0, 0.0), strict=True))


async def test_only_patterns_of_the_history_can_be_deleted(store: Store) -> None:
    ids = await add_patterns(store, 0.0, 1.0, 0.0, 0.0, 2.0)
    for given, num_deleted, left in (
        ([], 0, ids),
        (ids[:2], 1, ids[1:]),
        ([*ids, 999], 2, [ids[1], ids[4]]),
        (ids, 0, [ids[1], ids[4]]),
    ):
        async with store.transaction() as tx:
            assert await tx.patterns.delete(given) == num_deleted
        assert sorted(await weights_of(store)) == left


async def test_a_rule_gets_the_count_and_its_time_and_its_result_is_stored(store: Store) -> None:
    later = NOON + timedelta(minutes=5)
    arguments = []

    def rule(id_: int, uses: float, used_at: datetime) -> float:
        arguments.append((id_, uses, used_at))
        return uses / 2 + 1

    async with store.transaction() as tx:
        first = await tx.patterns.add(a_pattern())
        second = await tx.patterns.add(a_pattern(uses=3.0, weight=0.0))
        third = await tx.patterns.add(a_pattern(uses=9.0))
        await tx.patterns.update_uses([second, first, 999, second], rule, at=later)
        await tx.patterns.update_uses([], rule, at=later)
        patterns = await tx.patterns.get([first, second, third])
    assert arguments == [(first, 0.0, NOON), (second, 3.0, NOON)]
    uses = [(pattern.uses, pattern.used_at) for pattern in patterns]
    assert uses == [(1.0, later), (2.5, later), (9.0, NOON)]
    assert [pattern.weight for pattern in patterns] == [1.0, 0.0, 1.0]


async def test_the_time_of_a_count_never_goes_back(store: Store) -> None:
    [id_] = await add_patterns(store, 1.0)
    async with store.transaction() as tx:
        await tx.patterns.update_uses([id_], one_more, at=NOON - timedelta(days=1))
        [pattern] = await tx.patterns.get([id_])
    assert (pattern.uses, pattern.used_at) == (1.0, NOON)


async def test_concurrent_updates_of_counts_by_two_stores_lose_no_use(store_url: str) -> None:
    """Each gives the ids in another order: locking them in that order would be a deadlock."""
    async with await open_store(store_url) as one, await open_store(store_url) as two:
        ids = await add_patterns(one, *[1.0] * 5)

        async def use(store: Store, ids: list[int]) -> None:
            for number in range(20):
                async with store.transaction() as tx:
                    at = NOON + timedelta(seconds=number)
                    await tx.patterns.update_uses(ids, one_more, at=at)

        await asyncio.gather(use(one, ids), use(two, ids[::-1]), use(two, ids[1:]))
        async with one.reading() as tx:
            patterns = await tx.patterns.get(ids)
    assert [pattern.uses for pattern in patterns] == [40.0] + [60.0] * 4
    assert {pattern.used_at for pattern in patterns} == {NOON + timedelta(seconds=19)}


async def test_concurrent_uses_fits_and_deletions_neither_fail_nor_lose_uses(
    store_url: str,
) -> None:
    async with await open_store(store_url) as one, await open_store(store_url) as two:
        ids = await add_patterns(one, *[1.0, 0.0] * 10)

        async def use() -> None:
            for _ in range(20):
                async with one.transaction() as tx:
                    await tx.patterns.update_uses(ids[::-1], one_more, at=NOON)

        async def fit() -> None:
            for number in range(20):
                async with two.transaction() as tx:
                    chosen = {ids[i]: 1.0 + number for i in range(19, 9, -1 - number % 2)}
                    await tx.patterns.set_library("research", chosen, up_to=ids[-1])
                async with two.transaction() as tx:
                    await tx.patterns.delete([ids[number % 10]])

        await asyncio.gather(use(), fit())
        assert set(await weights_of(one)) >= set(ids[11:20:2])
        async with one.reading() as tx:
            left = await tx.patterns.of_application("research")
    assert {pattern.uses for pattern in left} == {20.0}
    assert len(left) < len(ids)

"""Fits: the last fit of each application."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from store.session import Store
from tests.unit.store.store_samples import NOON, a_fit


async def test_a_fit_is_read_as_it_was_recorded(store: Store) -> None:
    kernel: dict[str, Any] = {"bandwidths": [0.1, 1e-9], "words": {"llm": None}, "on": True}
    async with store.transaction() as tx:
        await tx.fits.put(a_fit(kernel=kernel))
    async with store.reading() as tx:
        assert await tx.fits.get("research") == a_fit(kernel=kernel)
        assert await tx.fits.get("nothing") is None


async def test_a_new_fit_of_an_application_replaces_the_previous_one(store: Store) -> None:
    newer = a_fit(fitted_at=NOON + timedelta(hours=1), last_pattern_id=9, num_patterns=6, kernel={})
    async with store.transaction() as tx:
        await tx.fits.put(a_fit())
        await tx.fits.put(a_fit("coding"))
    async with store.transaction() as tx:
        await tx.fits.put(newer)
    async with store.reading() as tx:
        assert list(await tx.fits.all()) == [a_fit("coding"), newer]


async def test_an_empty_store_lists_no_fits(store: Store) -> None:
    async with store.reading() as tx:
        assert list(await tx.fits.all()) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"bytes"])
async def test_a_kernel_that_is_not_json_is_refused_and_the_previous_fit_is_kept(
    store: Store, value: object
) -> None:
    async with store.transaction() as tx:
        await tx.fits.put(a_fit())
    with pytest.raises((TypeError, ValueError)):
        async with store.transaction() as tx:
            await tx.fits.put(a_fit(kernel={"odd": value}))
    async with store.reading() as tx:
        assert await tx.fits.get("research") == a_fit()

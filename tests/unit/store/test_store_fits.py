"""Fits: the last one of each application."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from store.session import Store
from tests.unit.store.store_samples import NOON, a_fit


async def test_a_fit_comes_back_as_it_was_put(store: Store) -> None:
    kernel: dict[str, Any] = {"bandwidths": [0.1, 1e-9], "words": {"llm": None}, "on": True}
    async with store.transaction() as tx:
        await tx.fits.put(a_fit(kernel=kernel))
    async with store.reading() as tx:
        assert await tx.fits.get("research") == a_fit(kernel=kernel)
        assert await tx.fits.get("nothing") is None


async def test_the_last_fit_of_an_application_replaces_the_one_before(store: Store) -> None:
    newer = a_fit(fitted_at=NOON + timedelta(hours=1), last_pattern_id=9, num_patterns=6, kernel={})
    async with store.transaction() as tx:
        await tx.fits.put(a_fit())
        await tx.fits.put(a_fit("coding"))
    async with store.transaction() as tx:
        await tx.fits.put(newer)
    async with store.reading() as tx:
        assert list(await tx.fits.all()) == [a_fit("coding"), newer]


async def test_a_store_without_fits_has_none(store: Store) -> None:
    async with store.reading() as tx:
        assert list(await tx.fits.all()) == []


@pytest.mark.parametrize("value", [float("nan"), float("inf"), object(), b"bytes"])
async def test_a_kernel_that_is_no_json_leaves_the_former_fit(store: Store, value: object) -> None:
    async with store.transaction() as tx:
        await tx.fits.put(a_fit())
    with pytest.raises((TypeError, ValueError)):
        async with store.transaction() as tx:
            await tx.fits.put(a_fit(kernel={"odd": value}))
    async with store.reading() as tx:
        assert await tx.fits.get("research") == a_fit()

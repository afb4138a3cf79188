"""Fixtures: tests with `store_url` or `store` run on SQLite, and on PostgreSQL if it is set up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from store.session import Store, open_store
from tests.unit.store.store_places import DATABASES, fresh_store_url


@pytest.fixture(params=DATABASES)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with fresh_store_url(request.param, tmp_path) as url:
        yield url


@pytest.fixture
async def store(store_url: str) -> AsyncIterator[Store]:
    async with await open_store(store_url) as opened:
        yield opened


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite store with a short timeout."""
    return f"sqlite:///{tmp_path / 'store.sqlite'}?timeout=0.05"

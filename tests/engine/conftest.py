"""The session's engine, reset for each test: idle, with the policy fcfs and an empty cache."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from serving.engine.clients.embedded import EmbeddedEngine
from tests.engine.vllm_driver import clean_engine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.engine)


@pytest.fixture
async def engine(demo_engine: EmbeddedEngine) -> AsyncIterator[EmbeddedEngine]:
    """The engine, reset; a test that leaves anything behind in it fails."""
    async with clean_engine(demo_engine):
        yield demo_engine

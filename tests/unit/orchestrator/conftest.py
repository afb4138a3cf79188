"""A runtime with an engine that answers at once, and a store of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from orchestrator import Runtime
from tests.unit.orchestrator.orchestrator_samples import scripted_runtime


@pytest.fixture
async def runtime(tmp_path: Path) -> AsyncIterator[Runtime]:
    async with scripted_runtime(tmp_path) as opened:
        yield opened

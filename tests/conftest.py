"""Fixtures of all tests: vLLM imported without warnings, and one real engine per session."""

from __future__ import annotations

import asyncio
import importlib
import os
import warnings
from collections.abc import Iterator

import pytest

from serving.engine.clients.embedded import EmbeddedEngine
from serving.engine.setup.config import EngineConfig, vllm_platform
from serving.policies.table import PolicySpec

DEMO_CONFIG = EngineConfig(
    policy=PolicySpec("fcfs"),
    slots=8,
    step_tokens=512,
    max_model_tokens=2048,
    kv_cache_bytes=4 << 20,  # 32 blocks of 128 tokens: eight long requests do not fit
)


@pytest.fixture(scope="session")
def imported_vllm() -> None:
    """Imports vLLM and our scheduler as the engine does; pytest does not see vLLM's warnings."""
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    for name, value in DEMO_CONFIG.environment(vllm_platform()).items():
        os.environ.setdefault(name, value)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in ("vllm.v1.engine.llm_engine", "serving.engine.scheduler.scheduler"):
            importlib.import_module(module)


@pytest.fixture(scope="session")
def demo_engine(imported_vllm: None) -> Iterator[EmbeddedEngine]:
    """The only embedded engine of the process, with the demo model; event loops may share it."""
    engine = EmbeddedEngine(DEMO_CONFIG)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())

"""Fixtures of all tests, the markers that they imply, and what `make quick` leaves out.

A test is marked by its fixtures: `engine` if it uses vLLM, `subprocess` if it starts processes.
A test without these marks which imports vLLM or starts a process fails.
"""

from __future__ import annotations

import asyncio
import gc
import importlib
import multiprocessing.util
import os
import signal
import sys
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import settings
from sqlalchemy import URL

import store.database.schema
from serving.engine.clients.embedded import EmbeddedEngine
from serving.engine.setup.config import EngineConfig, vllm_platform
from serving.policies.table import PolicySpec
from store.database.schema import upgrade
from store.database.urls import file_of, is_sqlite, normalised

# Also of the processes that tests start. No test depends on what another one's engine has learned.
os.environ.setdefault("ORCHESTRATE_MODEL", "random")
os.environ.setdefault("ORCHESTRATE_KEEP_SCHEDULER_STATE", "0")
os.environ.setdefault("ORCHESTRATE_ANALYZER", "0")

DEMO_CONFIG = EngineConfig(
    policy=PolicySpec("fcfs"),
    slots=8,
    step_tokens=512,
    max_model_tokens=2048,
    kv_cache_bytes=4 << 20,  # 32 blocks of 128 tokens: eight long requests do not fit
)

MARKERS = {"imported_vllm": "engine", "subprocesses": "subprocess"}
"""The marker of each test that uses this fixture, itself or through another."""

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "spawn"}
"""The audit events of a new process; multiprocessing raises none, `spawn` is ours (below)."""

settings.register_profile("quick", max_examples=10)

_running: pytest.Item | None = None


def pytest_configure() -> None:
    """Restores Ctrl-C: a shell ignores SIGINT for what it starts in the background.

    Child processes inherit that, and tests interrupt theirs.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the tests, and lets the files that use vLLM come last.

    A process which has imported vLLM is five times as large: its forks and its garbage collections
    take much longer, and tests of killed runs fork hundreds of times.
    """
    for item in items:
        for fixture in MARKERS.keys() & set(getattr(item, "fixturenames", ())):
            item.add_marker(MARKERS[fixture])
    use_vllm = {item.path for item in items if item.get_closest_marker("engine")}
    items.sort(key=lambda item: item.path in use_vllm)


def pytest_collection_finish() -> None:
    freeze_imported()


def freeze_imported() -> None:
    """Takes all that was imported out of later garbage collections, which else take 0.1 s each."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    global _running
    _running = item
    try:
        return (yield)
    finally:
        _running = None


def _refuse_unmarked(event: str, arguments: tuple[object, ...]) -> None:
    """An audit hook: an unmarked test neither imports vLLM nor starts a process."""
    imports = event == "import" and arguments[0] == "vllm"
    if not imports and event not in STARTS:
        return
    if event == "subprocess.Popen" and arguments[0] == "fc-list":
        return  # matplotlib lists a machine's fonts the first time that it draws
    if _running is None or any(_running.get_closest_marker(name) for name in MARKERS.values()):
        return
    action, fixture = ("imports vLLM", "imported_vllm") if imports else (event, "subprocesses")
    raise AssertionError(f"{_running.nodeid}: {action}, so the test must use {fixture!r}")


def _audited_spawn(*arguments: Any) -> int:
    sys.audit("spawn", *arguments[:1])
    return _spawn(*arguments)


sys.addaudithook(_refuse_unmarked)
_spawn = multiprocessing.util.spawnv_passfds
multiprocessing.util.spawnv_passfds = _audited_spawn


@pytest.fixture(scope="session", autouse=True)
def copied_stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A new SQLite file is a copy of an empty store: to migrate each takes longer than most tests.

    The tests of migrations call `upgrade` itself, and processes that tests start do as well.
    """
    template = tmp_path_factory.mktemp("empty") / "runs.db"
    upgrade(normalised(f"sqlite:///{template}"))

    def copy(url: URL) -> None:  # called under the lock of the store's file
        if is_sqlite(url) and not file_of(url).stat().st_size:
            file_of(url).write_bytes(template.read_bytes())
        else:
            upgrade(url)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(store.database.schema, "upgrade", copy)
        yield


@pytest.fixture(scope="session")
def subprocesses() -> None:
    """Says that a test starts other processes."""


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
    freeze_imported()


@pytest.fixture(scope="session")
def demo_engine(imported_vllm: None) -> Iterator[EmbeddedEngine]:
    """The only embedded engine of the process, with the demo model; event loops may share it."""
    engine = EmbeddedEngine(DEMO_CONFIG)
    asyncio.run(engine.start())
    yield engine
    asyncio.run(engine.close())

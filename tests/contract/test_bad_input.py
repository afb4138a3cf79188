"""Bad input to the runtime raises a specific error and does not damage the store."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path

import pytest
from sqlalchemy import text

from orchestrator import (
    ArgumentsDiffer,
    Flow,
    ResultNotSerialisable,
    Runtime,
    Settings,
    flow,
    open_runtime,
    step,
)
from orchestrator.testing import ScriptedEngine
from serving.errors import InvalidEngineConfig
from store.errors import StoreCorrupt, StoreFull, StoreLocked
from store.records import Status
from tests.unit.orchestrator.orchestrator_samples import Boom

LARGE = random.Random(0).randbytes(100_000).hex()


@step
async def large() -> str:
    return LARGE


@flow
async def works(name: str) -> str:
    return f"{name}, {len(await large())}"


@asynccontextmanager
async def runtime_in(folder: Path) -> AsyncIterator[Runtime]:
    settings = Settings(store=f"sqlite:///{folder / 'store.db'}?timeout=0.05")
    async with open_runtime(settings, engine=ScriptedEngine("yes")) as runtime:
        yield runtime


async def execute(runtime: Runtime, statement: str) -> None:
    async with runtime.store._writer.begin() as connection:
        await connection.execute(text(statement))


async def unknown_engine(folder: Path) -> None:
    async with open_runtime(Settings(store=f"sqlite:///{folder / 'store.db'}", engine="abacus")):
        raise AssertionError("it was opened")


async def locked_database(folder: Path) -> None:
    async with runtime_in(folder) as runtime:
        with closing(sqlite3.connect(folder / "store.db", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            await runtime.run(works, "locked")


async def full_database(folder: Path) -> None:
    async with runtime_in(folder) as runtime:
        await execute(runtime, "PRAGMA max_page_count=1")  # SQLite raises it to the current count
        await runtime.run(works, random.Random(1).randbytes(500_000).hex())


async def corrupt_payload(folder: Path) -> None:
    @flow
    async def dies() -> None:
        await large()
        raise Boom("the process dies")

    async with runtime_in(folder) as runtime:
        with pytest.raises(Boom):
            await runtime.run(dies.options(run_id="corrupt"))
        try:
            await execute(runtime, "UPDATE payloads SET data = CAST(X'00' || data AS BLOB)")
            await runtime.resume("corrupt", dies)
        finally:
            await execute(runtime, "UPDATE payloads SET data = substr(data, 2)")


async def flow_that_raises(folder: Path) -> None:
    @flow
    async def raises() -> None:
        await large()
        raise Boom("it does not work")

    async with runtime_in(folder) as runtime:
        await runtime.run(raises)


async def result_that_is_not_serialisable(folder: Path) -> None:
    @step
    async def strange():  # type: ignore[no-untyped-def]
        return object()

    @flow
    async def asks() -> None:
        await strange()

    async with runtime_in(folder) as runtime:
        await runtime.run(asks)


async def other_arguments(folder: Path) -> None:
    async with runtime_in(folder) as runtime:
        twice: Flow[[str], str] = works.options(run_id="twice")
        first = await runtime.run(twice, "once")
        assert (await runtime.run(twice, "once")).value == first.value
        await runtime.run(twice, "other")


@pytest.mark.parametrize(
    ("bad_input", "error", "message"),
    [
        (unknown_engine, InvalidEngineConfig, "abacus"),
        (locked_database, StoreLocked, "store.db"),
        (full_database, StoreFull, "store.db"),
        (corrupt_payload, StoreCorrupt, "payload"),
        (flow_that_raises, Boom, "it does not work"),
        (result_that_is_not_serialisable, ResultNotSerialisable, "step strange"),
        (other_arguments, ArgumentsDiffer, "twice"),
    ],
)
async def test_bad_input_raises_its_error_and_damages_no_other_run(
    tmp_path: Path,
    bad_input: Callable[[Path], Awaitable[None]],
    error: type[Exception],
    message: str,
) -> None:
    async with runtime_in(tmp_path) as runtime:
        before = await runtime.run(works, "before")
    with pytest.raises(error, match=message):
        await bad_input(tmp_path)
    async with runtime_in(tmp_path) as runtime:
        async with runtime.store.reading() as tx:
            assert (await tx.runs.get(before.run_id)).status is Status.COMPLETED
            assert not [run for run in await tx.runs.newest() if run.status is Status.RUNNING]
        assert (await runtime.run(works, "after")).value == f"after, {len(LARGE)}"
    with closing(sqlite3.connect(tmp_path / "store.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []

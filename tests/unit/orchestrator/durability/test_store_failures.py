"""When the store fails in the middle of a run: a named error, and nothing hangs."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import text

from orchestrator import Runtime, Settings, flow, gather, llm, open_runtime, step, tool
from orchestrator.testing import ScriptedEngine
from store.errors import AlreadyRecorded, StoreClosed, StoreFull, StoreLocked
from store.records import RunOutcome, Status
from store.session import open_store
from tests.unit.orchestrator.orchestrator_samples import (
    answer_ok,
    ask,
    recorded,
    scripted_runtime,
    store_url,
    the_run,
)


@pytest.mark.parametrize("moment", ["in the flow", "in a step", "in a call", "in a branch"])
async def test_a_store_that_is_closed_in_the_middle_ends_the_run_by_name(
    runtime: Runtime, moment: str
) -> None:
    async def close() -> None:
        await runtime.store.close()

    async def body() -> None:
        await ask()
        match moment:
            case "in the flow":
                await close()
            case "in a step":
                await step(close)()
            case "in a call":
                await tool(close)()
            case "in a branch":
                await gather(ask(), close(), ask())
        await ask()

    with pytest.raises(StoreClosed):
        await runtime.run(flow(name="f", deadline="1m")(body))
    assert runtime.engine.num_running == 0  # type: ignore[attr-defined]


async def test_a_store_that_has_no_room_left_ends_the_run_by_name_and_keeps_the_rest(
    tmp_path: Path,
) -> None:
    noise = random.Random(0)
    engine = ScriptedEngine(lambda _request: noise.randbytes(20_000).hex())

    async def body() -> None:
        while True:
            await ask()

    async with scripted_runtime(tmp_path, engine, record_text=True) as runtime:
        async with runtime.store._writer.begin() as connection:
            await connection.execute(text("PRAGMA max_page_count=200"))
        with pytest.raises(StoreFull):
            await runtime.run(flow(name="f")(body))
        found = await the_run(runtime.store)
    completed = [call for call in found.calls if call.status is Status.COMPLETED]
    assert len(completed) > 5
    assert all(call.output_payload for call in completed)


async def test_a_store_that_somebody_else_holds_ends_the_run_by_name(tmp_path: Path) -> None:
    settings = Settings(store=f"{store_url(tmp_path)}?timeout=0.05")
    async with open_runtime(settings, engine=ScriptedEngine(answer_ok)) as runtime:
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:

            async def body() -> None:
                await ask()
                other.execute("BEGIN IMMEDIATE")
                await gather(ask(), ask(), llm("x"))

            with pytest.raises(StoreLocked):
                await runtime.run(flow(name="f")(body))
            other.execute("ROLLBACK")
        assert (await runtime.run(flow(ask))).value == "all is well"


async def test_a_run_whose_end_somebody_else_recorded_ends_by_name(tmp_path: Path) -> None:
    """As where another process took the run for dead."""
    async with (
        scripted_runtime(tmp_path) as runtime,
        await open_store(store_url(tmp_path)) as other,
    ):

        async def body() -> None:
            async with other.reading() as tx:
                [run] = await tx.runs.newest()
            async with other.transaction() as tx:
                outcome = RunOutcome(Status.FAILED, run.started_at, 0.0)
                await tx.runs.finish(run.id, outcome)

        with pytest.raises(AlreadyRecorded):
            await runtime.run(flow(name="f")(body))
        assert (await the_run(runtime.store)).run.status is Status.FAILED


async def test_a_cancelled_run_waits_for_what_it_is_writing(tmp_path: Path) -> None:
    """A store that is busy for a while must not turn a cancellation into a run without end."""
    async with scripted_runtime(tmp_path) as runtime:
        with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None)) as other:
            reached = asyncio.Event()

            async def body() -> None:
                other.execute("BEGIN IMMEDIATE")
                reached.set()
                await ask()

            running = asyncio.create_task(runtime.run(flow(name="f")(body)))
            await reached.wait()
            for _ in range(5):
                running.cancel()
                await asyncio.sleep(0.01)
            assert not running.done()
            other.execute("ROLLBACK")
            with pytest.raises(asyncio.CancelledError):
                await running
        found = await the_run(runtime.store)
    assert found.run.status is Status.CANCELLED
    assert found.still_running() == []


async def test_a_failed_run_does_not_end_the_runtime(runtime: Runtime) -> None:
    async def body() -> None:
        raise KeyError

    for _ in range(3):
        with pytest.raises(KeyError):
            await runtime.run(flow(name="f")(body))
    result = await runtime.run(flow(ask))
    assert (await recorded(runtime.store, result.run_id)).run.status is Status.COMPLETED

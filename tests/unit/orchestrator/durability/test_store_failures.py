"""Store failures during a run: the run ends with a named error, and nothing hangs."""

from __future__ import annotations

import asyncio
import random
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from orchestrator import (
    OutcomeNotRecorded,
    OutcomeUnknown,
    Runtime,
    Settings,
    flow,
    gather,
    llm,
    open_runtime,
    step,
    tool,
)
from orchestrator import random as random_value
from orchestrator.testing import ScriptedEngine
from store.calls import Calls
from store.errors import AlreadyRecorded, StoreClosed, StoreFull, StoreLocked, StoreUnreachable
from store.records import CallRecord, RunOutcome, Status
from store.session import open_store
from store.unit_of_work import Transaction
from tests.unit.orchestrator.orchestrator_samples import (
    answer_ok,
    ask,
    recorded,
    scripted_runtime,
    store_url,
    the_run,
)


@pytest.mark.parametrize("moment", ["in the flow", "in a step", "in a call", "in a branch"])
async def test_a_store_that_is_closed_during_a_run_ends_it_with_store_closed(
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


async def test_a_full_store_ends_the_run_with_store_full_and_keeps_earlier_records(
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
        record = await the_run(runtime.store)
    completed = [call for call in record.calls if call.status is Status.COMPLETED]
    assert len(completed) > 5
    assert all(call.output_payload for call in completed)


async def test_a_locked_store_ends_the_run_with_store_locked(tmp_path: Path) -> None:
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


async def test_a_run_with_an_end_recorded_by_another_process_ends_with_already_recorded(
    tmp_path: Path,
) -> None:
    """As after another process took the run for orphaned."""
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


async def test_a_cancelled_run_waits_for_its_pending_writes(tmp_path: Path) -> None:
    """A store that is busy for a while must not keep a cancelled run from recording its end."""
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
        record = await the_run(runtime.store)
    assert record.run.status is Status.CANCELLED
    assert record.still_running() == []


async def test_a_failed_run_does_not_end_the_runtime(runtime: Runtime) -> None:
    async def body() -> None:
        raise KeyError

    for _ in range(3):
        with pytest.raises(KeyError):
            await runtime.run(flow(name="f")(body))
    result = await runtime.run(flow(ask))
    assert (await recorded(runtime.store, result.run_id)).run.status is Status.COMPLETED


async def test_a_run_resumes_after_the_start_of_one_of_its_calls_could_not_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls then have a gap in their numbers; later calls depend on those past it."""
    start, is_locked = Calls.start, True

    async def start_or_fail(calls: Calls, call: CallRecord, **rest: Any) -> None:
        if is_locked and call.node == 1:
            await asyncio.sleep(0.01)  # meanwhile the next one waits to be written
            raise StoreLocked("the store", "another process holds it")
        await start(calls, call, **rest)

    monkeypatch.setattr(Calls, "start", start_or_fail)

    @flow
    async def gapped() -> list[str]:
        await ask("first")
        results = await asyncio.gather(llm("lost"), llm("kept"), return_exceptions=True)
        if isinstance(results[0], StoreLocked):
            raise results[0]
        return [await ask("last"), *map(str, results)]

    once = gapped.options(run_id="the-run")
    async with scripted_runtime(tmp_path) as runtime:
        with pytest.raises(StoreLocked):
            await runtime.run(once)
        history = await recorded(runtime.store, "the-run")
        assert [call.node for call in history.calls] == [0, 2]
        is_locked = False
        result = await runtime.run(once)
        history = await recorded(runtime.store, "the-run")
    assert result.value == ["all is well"] * 3
    assert [call.node for call in history.calls] == [0, 2, 3, 4]
    assert {parent for parent, child in history.edges if child == 4} == {2, 3}


async def test_the_error_says_that_an_effect_was_asked_for_if_its_end_cannot_be_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_sent = 0

    @tool
    async def send() -> None:
        nonlocal num_sent
        num_sent += 1

    @flow(name="f")
    async def sending() -> None:
        await send()

    async def fail(*_: Any) -> None:
        raise StoreLocked("sqlite:///runs.db", "another process holds it")

    once = sending.options(run_id="the-run")
    async with scripted_runtime(tmp_path) as runtime:
        with monkeypatch.context() as patch:
            patch.setattr(Calls, "finish", fail)
            with pytest.raises(OutcomeNotRecorded, match=r"send.* may have taken effect.* busy"):
                await runtime.run(once)
        with pytest.raises(OutcomeUnknown):
            await runtime.run(once)
    assert num_sent == 1


async def test_nothing_more_begins_in_a_run_after_a_write_failed_although_the_flow_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That error is not recorded: a resumed run could not take the way that followed it."""
    executed = []

    @tool(effects="pure")
    async def look(name: str) -> str:
        executed.append(name)
        return name

    @flow(name="f")
    async def persistent() -> str:
        try:
            return await look("first")
        except StoreLocked:
            return await look("second")

    async def fail(*_: Any) -> None:
        raise StoreLocked("sqlite:///runs.db", "another process holds it")

    once = persistent.options(run_id="the-run")
    async with scripted_runtime(tmp_path) as runtime:
        with monkeypatch.context() as patch:
            patch.setattr(Calls, "finish", fail)
            with pytest.raises(StoreLocked):
                await runtime.run(once)
        assert (await runtime.run(once)).value == "first"
    assert executed == ["first", "first"]


async def test_a_value_is_recorded_by_the_next_write_if_the_commit_that_had_it_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another branch's start, with that value as an argument, was waiting behind that commit."""

    @tool(effects="pure")
    async def look(value: float) -> float:
        return value

    @flow(name="f")
    async def valued() -> tuple[float, float]:
        value = random_value()
        return await gather(look(value), look(value + 1))

    once = valued.options(run_id="the-run")
    async with scripted_runtime(tmp_path) as runtime:
        transaction, num_starts = runtime.store.transaction, 0

        @asynccontextmanager
        async def failing_once(*, synced: bool = False) -> AsyncIterator[Transaction]:
            nonlocal num_starts
            async with transaction(synced=synced) as tx:
                yield tx
                num_starts += 1
                if num_starts == 3:  # after the run's start and its lease
                    await asyncio.sleep(0.01)
                    raise StoreUnreachable("sqlite:///runs.db", "the connection was cut")

        monkeypatch.setattr(runtime.store, "transaction", failing_once)
        with pytest.raises(StoreUnreachable):
            await runtime.run(once)
        journal = (await recorded(runtime.store, "the-run")).journal
        first, second = (await runtime.run(once)).value
    assert {"random", "look[1]"} <= journal.keys()
    assert "look[0]" not in journal
    assert second == first + 1

"""A removal is atomic, safe beside concurrent transactions, and fast."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sqlalchemy import func, select, text, update

from store.models import Payload, Run
from store.records import Status, StepOutcome
from store.session import Store, open_store
from tests.unit.store.retention_samples import (
    BETWEEN,
    CHUNKED,
    MANY_CHUNKS,
    NEW,
    NOTHING,
    NOW,
    OLD,
    SMALL,
    contents,
    everything_of,
    record,
    remove,
)
from tests.unit.store.store_places import connected
from tests.unit.store.store_samples import a_run, a_step


async def test_a_removal_that_is_rolled_back_removes_nothing(store_url: str) -> None:
    async with await open_store(store_url) as store:
        async with store.transaction() as tx:
            await record(tx, "old", [SMALL, None, CHUNKED, MANY_CHUNKS, None])
        before = contents(store_url)

        async def remove_and_fail() -> None:
            async with store.transaction() as tx:
                await tx.retention.remove(ended_before=BETWEEN, now=NOW)
                raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await remove_and_fail()
        assert contents(store_url) == before
        assert (await remove(store)).num_runs == 1


async def test_a_long_removal_takes_several_transactions(store: Store) -> None:
    async with store.transaction() as tx:
        await record(tx, "old", [MANY_CHUNKS, None, CHUNKED, None, None])
        await record(tx, "new", [MANY_CHUNKS[:350_000], None, None, None, None], NEW)
    before = await everything_of(store, "new")
    expected = await remove(store, dry_run=True)
    total = NOTHING
    for number in range(1_000):
        async with store.transaction() as tx:
            later = await tx.retention.remove(ended_before=BETWEEN, now=NOW, hold_s=0)
        assert later.num_runs == (number == 0)
        assert await everything_of(store, "new") == before
        total = total.and_then(later)
        if later.is_complete:
            break
    assert number > 1
    assert total == expected


async def test_a_removal_does_not_change_the_schema(store_url: str) -> None:
    """Its marks and indexes exist only within the transaction."""

    def schema() -> list[Any]:
        with connected(store_url) as connection:
            if connection.dialect.name == "sqlite":
                query = "SELECT name, sql FROM sqlite_master ORDER BY name"
            else:
                query = (
                    "SELECT indexname, indexdef FROM pg_indexes"
                    " WHERE schemaname = current_schema() ORDER BY 1"
                )
            return list(connection.execute(text(query)).all())

    async with await open_store(store_url) as store:
        async with store.transaction() as tx:
            await record(tx, "old", [SMALL, None, CHUNKED, MANY_CHUNKS, None])
        before = schema()
        await remove(store)
    assert schema() == before


async def test_payloads_that_are_stored_again_during_a_removal_are_not_lost(store_url: str) -> None:
    """Two stores stand for two processes. Each run uses the payloads of the one before it, which
    the other store is removing."""
    async with await open_store(store_url) as store, await open_store(store_url) as other:
        done = asyncio.Event()

        async def collect() -> None:
            while not done.is_set():
                await remove(store)
                await asyncio.sleep(0.02)

        async def work() -> None:
            for number in range(20):
                run_id = f"run-{number}"
                async with other.transaction() as tx:
                    await record(tx, run_id, [CHUNKED, None, SMALL, None, None], NEW)
                before = await everything_of(other, run_id)
                await asyncio.sleep(0)
                assert await everything_of(other, run_id) == before
                async with other.transaction() as tx:
                    connection = tx.retention._connection
                    await connection.execute(update(Run).values(finished_at=OLD))
            done.set()

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(collect())
            tasks.create_task(work())


async def test_a_transaction_that_began_before_a_removal_does_not_deadlock_with_it(
    store_url: str,
) -> None:
    """It holds a table that the removal needs, and needs one that the removal holds."""
    async with await open_store(store_url) as store, await open_store(store_url) as other:
        async with store.transaction() as tx:
            await record(tx, "old", [SMALL, None, CHUNKED, None, None])
        async with other.transaction() as tx:
            await tx.runs.add(a_run("new"))
            await tx.journal.start(a_step(run_id="new"))
            removal = asyncio.create_task(remove(store))
            await asyncio.sleep(0.2)
            name = await tx.payloads.put(CHUNKED)
            done = StepOutcome(Status.COMPLETED, 1.0, result_payload=name)
            await tx.journal.finish("new", "plan", done)
        removed = await removal
        assert (removed.num_runs, removed.num_payloads) == (1, 1)
        assert (await everything_of(other, "new"))[-1] == [CHUNKED]


@pytest.mark.slow
async def test_the_time_to_remove_payloads_is_linear_in_their_number(store: Store) -> None:
    """Without the removal's indexes, each removed payload would cost a scan of all steps."""
    num_steps = 2_000
    async with store.transaction() as tx:
        await tx.runs.add(a_run("old", status=Status.COMPLETED, finished_at=OLD))
        await tx.runs.add(a_run("new", status=Status.COMPLETED, finished_at=NEW))
        for run_id in ("old", "new"):
            for number in range(num_steps):
                name = await tx.payloads.put(f"{run_id} {number}".encode())
                step = a_step(f"step[{number}]", run_id=run_id, result_payload=name)
                await tx.journal.start(step)
    removed = await remove(store)
    assert removed.num_payloads == removed.num_steps == num_steps
    async with store._reader.begin() as connection:
        assert await connection.scalar(select(func.count()).select_from(Payload)) == num_steps

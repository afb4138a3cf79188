"""Two hundred running calls are cancelled at once: the engine keeps nothing of them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from orchestrator import Runtime, Settings, flow, gather, llm, open_runtime
from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from store.records import Status, StepKind
from tests.engine.shared_engine import SharedEngine

CALLS = 200
FOREVER = 100_000


def counts(llm_engine: Any) -> tuple[int, int, int]:
    """Number of requests in the scheduler, of running ones, and of free KV blocks."""
    scheduler = scheduler_of(llm_engine)
    free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return len(scheduler.requests), len(scheduler.running), free_blocks


async def all_submitted(engine: EmbeddedEngine) -> None:
    """Wait until the scheduler has every call, and some of them run."""
    async with asyncio.timeout(60):
        while True:
            submitted, running, _ = await engine.call(counts)
            if submitted == CALLS and running:
                return
            await asyncio.sleep(0.05)


async def test_two_hundred_cancelled_calls_leave_nothing_in_the_engine(
    engine: EmbeddedEngine, tmp_path: Path
) -> None:
    @flow(deadline="10m")
    async def many_calls() -> int:
        return len(await gather(*(llm(f"call {n}", max_tokens=FOREVER) for n in range(CALLS))))

    settings = Settings(store=f"sqlite:///{tmp_path / 'runs.db'}", fit_every=0)
    before = await engine.call(counts)
    async with open_runtime(settings, engine=SharedEngine(engine)) as runtime:
        handle = runtime.start(many_calls)
        await all_submitted(engine)
        async with asyncio.timeout(60):  # no client hangs
            await handle.cancel()
        assert handle.status is Status.CANCELLED
        assert await engine.call(counts) == before
        await check_records(runtime, handle.id)
        assert (await runtime.run(one_call)).value  # the engine still serves


@flow
async def one_call() -> str:
    return await llm("still there?", max_tokens=4)


async def check_records(runtime: Runtime, run_id: str) -> None:
    """In the store the run, its calls and their steps are cancelled."""
    async with runtime.store.reading() as tx:
        run = await tx.runs.get(run_id)
        calls = await tx.calls.of_run(run_id)
        steps = await tx.journal.of_run(run_id)
    assert run.status is Status.CANCELLED
    assert [call.status for call in calls] == [Status.CANCELLED] * CALLS
    statuses = [step.status for step in steps if step.kind is StepKind.LLM]
    assert statuses == [Status.CANCELLED] * CALLS

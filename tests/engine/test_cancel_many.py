"""Two hundred calls in flight, cancelled at once: nothing of them is left anywhere."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from orchestrator import Runtime, Settings, flow, gather, llm, open_runtime
from serving.engine.clients.embedded import EmbeddedEngine, scheduler_of
from store.records import Status, StepKind
from tests.engine.borrowed import Borrowed

CALLS = 200
FOREVER = 100_000


def in_flight(llm_engine: Any) -> tuple[int, int, int]:
    """Requests that the scheduler knows, those that run, and the KV blocks that are free."""
    scheduler = scheduler_of(llm_engine)
    free_blocks = scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
    return len(scheduler.requests), len(scheduler.running), free_blocks


async def all_under_way(engine: EmbeddedEngine) -> None:
    """Wait until the scheduler has every call, and some of them run."""
    async with asyncio.timeout(60):
        while True:
            known, running, _ = await engine.call(in_flight)
            if known == CALLS and running:
                return
            await asyncio.sleep(0.05)


async def test_nothing_is_left_of_two_hundred_cancelled_calls(
    engine: EmbeddedEngine, tmp_path: Path
) -> None:
    @flow(deadline="10m")
    async def crowd() -> int:
        return len(await gather(*(llm(f"call {n}", max_tokens=FOREVER) for n in range(CALLS))))

    settings = Settings(store=f"sqlite:///{tmp_path / 'runs.db'}", fit_every=0)
    before = await engine.call(in_flight)
    async with open_runtime(settings, engine=Borrowed(engine)) as runtime:
        handle = runtime.start(crowd)
        await all_under_way(engine)
        async with asyncio.timeout(60):  # no client hangs
            await handle.cancel()
        assert handle.status is Status.CANCELLED
        assert await engine.call(in_flight) == before
        await says_what_happened(runtime, handle.id)
        assert (await runtime.run(one)).value  # and the engine goes on


@flow
async def one() -> str:
    """A call after all that."""
    return await llm("still there?", max_tokens=4)


async def says_what_happened(runtime: Runtime, run_id: str) -> None:
    """The store holds the run, its calls and their steps, and the end of each."""
    async with runtime.store.reading() as tx:
        run = await tx.runs.get(run_id)
        calls = await tx.calls.of_run(run_id)
        steps = await tx.journal.of_run(run_id)
    assert run.status is Status.CANCELLED
    assert [call.status for call in calls] == [Status.CANCELLED] * CALLS
    asked = [step.status for step in steps if step.kind is StepKind.LLM]
    assert asked == [Status.CANCELLED] * CALLS

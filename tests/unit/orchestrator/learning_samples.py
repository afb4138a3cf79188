"""A flow to learn from, another with the same name and first stage, and access to their records."""

from __future__ import annotations

from orchestrator import Runtime, flow, gather, llm, step, tool
from orchestrator.testing import ScriptedEngine
from serving.generation import GenerationRequest
from store.records import StageRecord
from store.session import Store


@step
async def plan() -> str:
    return await llm("what is to be done?", max_tokens=50)


@step
async def work(number: int) -> str:
    return await llm(f"do part {number}", max_tokens=50)


@tool
async def search() -> None:
    """Takes no time."""


@flow(deadline="1h", stages=2)
async def typical() -> None:
    await plan()
    await gather(*(work(number) for number in range(3)))


@flow(name="typical", deadline="1h")
async def atypical() -> None:
    await plan()
    await search()
    await plan()


async def stages_of(store: Store, run_id: str) -> list[StageRecord]:
    async with store.reading() as tx:
        return list(await tx.stages.of_run(run_id))


def requests_of(runtime: Runtime) -> list[GenerationRequest]:
    assert isinstance(runtime.engine, ScriptedEngine)
    return runtime.engine.requests

"""Questions of a run as its store has them, and answers as another process gives them."""

from __future__ import annotations

import asyncio
import json

from store.records import Status, StepKind, StepOutcome, StepRecord
from store.session import Store

ID = "the-run"


async def asked(store: Store, count: int = 1) -> list[StepRecord]:
    """The questions of the run, once there are so many."""
    for _ in range(100_000):
        async with store.reading() as tx:
            steps = [step for step in await tx.journal.of_run(ID) if step.kind is StepKind.INPUT]
        if len(steps) >= count:
            return steps
        await asyncio.sleep(0.001)
    raise AssertionError("nobody asked")


async def answer(store: Store, path: str, value: object) -> None:
    """Answer a question, as another process would."""
    outcome = StepOutcome(Status.COMPLETED, 0.0, result=json.dumps(value).encode())
    async with store.transaction() as tx:
        await tx.journal.finish(ID, path, outcome)


async def answer_later(store: Store, path: str, value: object) -> None:
    """The same, of a question whose run has ended meanwhile."""
    async with store.transaction() as tx:
        ended = await tx.journal.get(ID, path)
        await tx.journal.start_again(
            StepRecord(ID, path, ended.name, ended.started_s, ended.kind, ended.place)
        )
    await answer(store, path, value)


async def asked_again(store: Store, attempts: int) -> StepRecord:
    """The only question of the run, once it has been asked so often."""
    for _ in range(100_000):
        [question] = await asked(store)
        if question.attempts == attempts and question.status is Status.RUNNING:
            return question
        await asyncio.sleep(0.001)
    raise AssertionError("nobody asked again")

"""Reads a run's questions from its store, and answers them as another process would."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime

from store.records import Status, StepKind, StepOutcome, StepRecord
from store.session import Store

ID = "the-run"


async def questions_of(store: Store, count: int = 1) -> list[StepRecord]:
    """Wait until the run has asked so many questions; returns them."""
    for _ in range(100_000):
        async with store.reading() as tx:
            steps = [step for step in await tx.journal.of_run(ID) if step.kind is StepKind.INPUT]
        if len(steps) >= count:
            return steps
        await asyncio.sleep(0.001)
    raise AssertionError("the run did not ask")


async def answer(store: Store, path: str, value: object) -> None:
    """Answer a question, as another process would."""
    outcome = StepOutcome(Status.COMPLETED, 0.0, result=json.dumps(value).encode())
    async with store.transaction() as tx:
        await tx.journal.finish(ID, path, outcome)


async def answer_ended_run(store: Store, path: str, value: object) -> None:
    """The same for a question of a run that has ended."""
    async with store.transaction() as tx:
        ended = await tx.journal.get(ID, path)
        await tx.journal.start_again(
            StepRecord(ID, path, ended.name, ended.started_s, ended.kind, ended.place),
            at=datetime.now(UTC),
        )
    await answer(store, path, value)


async def repeated_question(store: Store, attempts: int) -> StepRecord:
    """Wait until the run has asked its only question so many times; returns it."""
    for _ in range(100_000):
        [question] = await questions_of(store)
        if question.attempts == attempts and question.status is Status.RUNNING:
            return question
        await asyncio.sleep(0.001)
    raise AssertionError("the run did not ask again")

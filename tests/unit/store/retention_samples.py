"""Runs to remove or to keep, and the contents of a store before and after."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import MetaData, select

from store.models import Payload
from store.records import CallOutcome, RunOutcome, Status, StepOutcome
from store.retention import Removal
from store.session import Store
from store.unit_of_work import Transaction
from tests.unit.store.store_places import connected
from tests.unit.store.store_samples import NOON, a_call, a_run, a_stage, a_step

DAY = timedelta(days=1)
NOW = NOON + 100 * DAY
OLD, NEW = NOON, NOON + 90 * DAY
BETWEEN = NOON + 50 * DAY

NOTHING = Removal(0, 0, 0, 0, 0)

NOISE = random.Random(0).randbytes(400_000)
SMALL = b"a result"
CHUNKED = NOISE[:60_000]
MANY_CHUNKS = NOISE
TEXTS = [
    SMALL,
    b"another",
    NOISE[:3_000],
    CHUNKED,
    CHUNKED + b"more",
    MANY_CHUNKS,
    MANY_CHUNKS[:350_000],
]


async def remove(store: Store, *, dry_run: bool = False, before: datetime = BETWEEN) -> Removal:
    async with store.transaction() as tx:
        return await tx.retention.remove(ended_before=before, now=NOW, dry_run=dry_run)


async def record(
    tx: Transaction, run_id: str, used: Sequence[bytes | None], ended: datetime | None = OLD
) -> list[str | None]:
    """Record a run with all kinds of parts and payloads.

    Args:
        used: the run's input and result, the step's result, the call's prompt and output.
        ended: None: the run is recorded as running.
    """
    names = [None if data is None else await tx.payloads.put(data) for data in used]
    run_input, run_result, step_result, prompt, output = names
    await tx.runs.add(a_run(run_id, input_payload=run_input))
    await tx.journal.start(a_step(run_id=run_id))
    done = StepOutcome(Status.COMPLETED, 1.0, result_payload=step_result)
    await tx.journal.finish(run_id, "plan", done)
    await tx.calls.start(a_call(0, run_id=run_id, prompt_payload=prompt))
    await tx.calls.start(a_call(1, run_id=run_id), parents=[0])
    answered = CallOutcome(Status.COMPLETED, 1.0, output_payload=output)
    await tx.calls.finish(run_id, 1, answered)
    await tx.stages.start(a_stage(run_id=run_id))
    if ended is not None:
        outcome = RunOutcome(Status.COMPLETED, ended, 1.0, result_payload=run_result)
        await tx.runs.finish(run_id, outcome)
    return names


async def everything_of(store: Store, run_id: str) -> list[Any]:
    """A run with all its parts, and the bytes of all its payloads."""
    async with store.reading() as tx:
        run = await tx.runs.get(run_id)
        steps = await tx.journal.of_run(run_id)
        calls = await tx.calls.of_run(run_id)
        names = [run.input_payload, run.result_payload]
        names += [step.result_payload for step in steps]
        names += [name for call in calls for name in (call.prompt_payload, call.output_payload)]
        payloads = [await tx.payloads.get(name) for name in names if name is not None]
        edges = await tx.calls.edges_of_run(run_id)
        stages = await tx.stages.of_run(run_id)
    return [run, list(steps), list(calls), list(edges), list(stages), payloads]


async def stored_hashes(store: Store) -> set[str]:
    async with store._reader.begin() as connection:
        return set((await connection.execute(select(Payload.hash))).scalars())


def contents(url: str) -> dict[str, list[Any]]:
    """Table name -> its rows."""
    with connected(url) as connection:
        tables = MetaData()
        tables.reflect(connection)
        return {
            name: sorted(connection.execute(select(table)).all(), key=repr)
            for name, table in tables.tables.items()
        }

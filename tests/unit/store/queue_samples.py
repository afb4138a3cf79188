"""Sample runs of queues, and a worker that claims them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from store.queue.records import Claim, Claimant
from store.records import NEVER_DUE, RunRecord, Status
from store.session import Store
from tests.unit.store.store_samples import a_run

HERE = Claimant(process_id=7, host="here", process="boot ns 1", engine="vllm", model="demo")


def a_queued_run(run_id: str = "run-1", **changes: Any) -> RunRecord:
    """A run that was submitted to the queue `default` a moment ago."""
    fields: dict[str, Any] = {
        "status": Status.QUEUED,
        "queue": "default",
        "due_at": NEVER_DUE,
        "started_at": datetime.now(UTC) - timedelta(seconds=1),
        "code_version": "v1",
        "max_attempts": 3,
    }
    return a_run(run_id, **fields | changes)


def a_claim(**changes: Any) -> Claim:
    fields: dict[str, Any] = {
        "claimant": HERE,
        "queues": ["default"],
        "versions": {"research": "v1"},
        "lease_s": 60.0,
    }
    return Claim(**fields | changes)


async def submit(store: Store, *runs: RunRecord) -> None:
    for run in runs:
        async with store.transaction() as tx:
            await tx.waiting.add(run)


async def take(store: Store, num: int = 100, **changes: Any) -> list[RunRecord]:
    async with store.transaction() as tx:
        return await tx.claims.take(a_claim(**changes), num=num, wall=datetime.now(UTC))


async def ids_of(store: Store, num: int = 100, **changes: Any) -> list[str]:
    """The ids of the runs that a claim gets."""
    return [run.id for run in await take(store, num, **changes)]

"""Hands the runs of a runtime over to the next process: they are interrupted, not ended."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.clock import Clock
from orchestrator.durability.journal_writer import JournalWriter
from orchestrator.errors import RunInterrupted
from store.records import RunRecord

if TYPE_CHECKING:
    from store.session import Store

AGAIN_S = 1.0
"""Seconds after which a run that has caught its interruption is interrupted again."""


@dataclass(frozen=True, slots=True, eq=False)
class ExecutedRun:
    """A run that this process executes.

    Attributes:
        record: as its start was recorded.
        task: executes it; ends once its end is recorded.
    """

    record: RunRecord
    writer: JournalWriter
    task: asyncio.Task[Any]


async def interrupt(runs: Collection[ExecutedRun], store: Store, clock: Clock) -> list[str]:
    """Stop runs as if their process had died, so that any process can resume them at once.

    Nothing more is recorded of them: what is in progress is cut off, and is done again, or for an
    external effect looked up, when the run is resumed.

    Returns:
        The ids of the runs that were interrupted: some may have ended meanwhile.
    """
    for run in runs:
        run.writer.is_interrupted = True
    left = {run.task for run in runs if not run.task.done()}
    while left:
        for task in left:
            task.cancel()
        _, left = await asyncio.wait(left, timeout=AGAIN_S)
    attempts = {run.record.id: run.record.attempts for run in runs}
    async with store.transaction() as tx:
        await tx.runs.lease(attempts, await tx.now(clock.wall()))
        await tx.claims.hand_back(attempts, wall=clock.wall())  # those of queues wait there again
    return [run.record.id for run in runs if _was_interrupted(run.task)]


def _was_interrupted(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and isinstance(task.exception(), RunInterrupted)

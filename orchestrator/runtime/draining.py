"""Hands the runs of a runtime over to the next process: they are interrupted, not ended."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from orchestrator.cancellation import until_ended
from orchestrator.clock import Clock
from orchestrator.durability.journal_writer import JournalWriter
from orchestrator.errors import RunInterrupted
from store.records import RunRecord

if TYPE_CHECKING:
    from store.session import Store


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
        run.task.cancel()
    await until_ended([run.task for run in runs])
    async with store.transaction() as tx:
        attempts = {run.record.id: run.record.attempts for run in runs}
        await tx.runs.lease(attempts, clock.wall())
    return [run.record.id for run in runs if _was_interrupted(run.task)]


def _was_interrupted(task: asyncio.Task[Any]) -> bool:
    return not task.cancelled() and isinstance(task.exception(), RunInterrupted)
